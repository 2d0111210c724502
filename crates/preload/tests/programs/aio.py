"""asyncio: an echo server and 200 clients in one loop."""
from common import *
import asyncio


async def main():
    async def echo(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, ADDRESS, 0, backlog=300)
    port = server.sockets[0].getsockname()[1]

    async def client(n):
        reader, writer = await asyncio.open_connection(ADDRESS, port)
        data = bytes([n % 256]) * (1000 * (n % 50) + 1)
        writer.write(data)
        got = await reader.readexactly(len(data))
        writer.close()
        return got == data

    say(sum(await asyncio.gather(*(client(n) for n in range(200)))))
    reader, writer = await asyncio.open_connection(ADDRESS, port)
    data = os.urandom(4 << 20)
    writer.write(data)
    say(await reader.readexactly(len(data)) == data)
    try:
        await asyncio.wait_for(reader.read(1), 0.1)
    except asyncio.TimeoutError:
        say("timed out")
    writer.close()
    server.close()


asyncio.run(main())
