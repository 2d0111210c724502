"""An asyncio echo server over TCP and UDP: echo_server.py PORT [PORT...] (UDP on the first). Prints `ready`."""
import asyncio
import resource
import sys


async def echo(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
    except ConnectionError:
        pass


class Datagrams(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, peer):
        self.transport.sendto(data, peer)


async def main():
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 65536), limit))
    server = await asyncio.start_server(echo, "0.0.0.0", int(sys.argv[1]), backlog=1024)
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Datagrams, local_addr=("0.0.0.0", int(sys.argv[1])))
    others = [await asyncio.start_server(echo, "0.0.0.0", int(port)) for port in sys.argv[2:]]
    print("ready", flush=True)
    async with server:
        await asyncio.gather(*(each.serve_forever() for each in [server, *others]))


asyncio.run(main())
