"""Who is reached at 127.0.0.1: loopback.py OURS. The kernel's listeners, and ours that listen at every address."""

import socket
import sys

ours = sys.argv[1]

# Bound to a loopback address: the kernel's.
kernel = socket.create_server(("127.0.0.1", 7001))
client = socket.create_connection(("127.0.0.1", 7001), timeout=30)
served, _ = kernel.accept()
client.sendall(b"kernel")
assert served.recv(100) == b"kernel"

# At every address: on paths, and reached at 127.0.0.1 and at the machine's address.
paths = socket.create_server(("0.0.0.0", 7002))
for to in ["127.0.0.1", ours]:
    client = socket.create_connection((to, 7002), timeout=30)
    served, peer = paths.accept()
    client.sendall(b"paths")
    assert served.recv(100) == b"paths"
    assert peer == client.getsockname() and peer[0] == to, (peer, client.getsockname())

# Nobody.
for to in ["127.0.0.1", ours]:
    try:
        socket.create_connection((to, 7003), timeout=30)
        raise SystemExit(f"somebody listens at {to}")
    except ConnectionRefusedError:
        pass
print("done")
