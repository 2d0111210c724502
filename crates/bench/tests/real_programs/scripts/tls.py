"""TLS by python's ssl, on both sides: tls.py serve|ask ADDRESS PORT CERTIFICATE KEY

The server echoes each message in a thread of its own, on connections that block, until the client says goodbye (closes
its half of TLS); the client checks certificate and bytes: with sockets that block, that have a time-out, and by asyncio,
and through a session that it takes up again. Prints `ready`, or `all echoed`.
"""
import asyncio
import hashlib
import socket
import ssl
import struct
import sys
import threading

ROLE, ADDRESS, PORT, CERTIFICATE, KEY = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]
LENGTHS = [1, 100, 16384, 16385, 300000, 2000000]
NAME = "test"


def message(length):
    seed = hashlib.sha256(str(length).encode()).digest()
    return (seed * (length // len(seed) + 1))[:length]


def read_exactly(connection, count):
    got = b""
    while len(got) < count:
        part = connection.recv(count - len(got))
        if not part:
            raise EOFError(f"{len(got)} of {count} bytes")
        got += part
    return got


def serve_one(connection, context):
    connection = context.wrap_socket(connection, server_side=True)
    while head := connection.recv(4):
        head += read_exactly(connection, 4 - len(head)) if len(head) < 4 else b""
        connection.sendall(head + read_exactly(connection, struct.unpack("!I", head)[0]))
    connection.unwrap().close()


def serve():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    listener = socket.create_server((ADDRESS, PORT), backlog=64)
    print("ready", flush=True)
    while True:
        threading.Thread(target=serve_one, args=(listener.accept()[0], context), daemon=True).start()


def trusting(version):
    context = ssl.create_default_context(cafile=CERTIFICATE)
    context.check_hostname = False  # `test` stands as the subject's name only, which is not looked at
    context.minimum_version = context.maximum_version = version
    return context


def ask(context, timeout=None, session=None):
    connection = socket.create_connection((ADDRESS, PORT))
    connection.settimeout(timeout)
    connection = context.wrap_socket(connection, server_hostname=NAME, session=session)
    for length in LENGTHS:
        sent = struct.pack("!I", length) + message(length)
        connection.sendall(sent)  # the server reads all of it before it answers
        assert read_exactly(connection, len(sent)) == sent, f"{length}: other bytes came back"
    session, reused = connection.session, connection.session_reused
    connection.unwrap().close()
    return session, reused


async def ask_at_once(context, count):
    async def one():
        reader, writer = await asyncio.open_connection(ADDRESS, PORT, ssl=context, server_hostname=NAME)
        for length in LENGTHS[:4]:
            sent = struct.pack("!I", length) + message(length)
            writer.write(sent)
            assert await reader.readexactly(len(sent)) == sent, f"{length}: other bytes came back"
        writer.close()
        await writer.wait_closed()

    await asyncio.wait_for(asyncio.gather(*(one() for _ in range(count))), 50)


if ROLE == "serve":
    serve()
for version in ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3:
    context = trusting(version)
    session, reused = ask(context)
    assert not reused
    session, reused = ask(context, timeout=30, session=session)
    assert reused, f"{version}: the session was not taken up again"
    asyncio.run(ask_at_once(context, 30))
try:
    ask(ssl.create_default_context())
except ssl.SSLCertVerificationError:
    print("all echoed", flush=True)
