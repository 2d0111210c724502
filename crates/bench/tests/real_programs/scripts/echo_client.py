"""Many connections at once: echo_client.py ADDRESS PORT CONNECTIONS.

All are open before the first of them says anything. Each sends messages of its own, of growing length, and compares
what comes back; then it closes its half and waits for the end. Prints `all echoed`.
"""
import asyncio
import hashlib
import resource
import sys

ADDRESS, PORT, CONNECTIONS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
LENGTHS = [1, 100, 1460, 5000, 20000]


def message(connection, round, length):
    seed = hashlib.sha256(f"{connection}/{round}".encode()).digest()
    return (seed * (length // len(seed) + 1))[:length]


async def client(connection, all_open):
    reader, writer = await asyncio.open_connection(ADDRESS, PORT)
    await all_open.wait()
    for round, length in enumerate(LENGTHS):
        sent = message(connection, round, length)
        writer.write(sent)
        got = await reader.readexactly(length)
        assert got == sent, f"connection {connection}, round {round}: other bytes came back"
    writer.write_eof()
    assert await reader.read() == b"", f"connection {connection}: bytes after the end"
    writer.close()
    await writer.wait_closed()


class Gate:
    """Opens when everybody has come."""

    def __init__(self, count):
        self.missing, self.event = count, asyncio.Event()

    async def wait(self):
        self.missing -= 1
        if self.missing == 0:
            self.event.set()
        await self.event.wait()


async def main():
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 65536), limit))
    gate = Gate(CONNECTIONS)
    await asyncio.wait_for(asyncio.gather(*(client(i, gate) for i in range(CONNECTIONS))), 50)
    print("all echoed", flush=True)


asyncio.run(main())
