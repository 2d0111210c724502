"""Datagrams to an echo of this machine and to one of another, from one socket: local.py OURS PEER PORT."""

import socket
import sys

ours, peer, port = sys.argv[1], sys.argv[2], int(sys.argv[3])

one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind(("0.0.0.0", 0))
one.settimeout(30)
for size in [1, 100, 1472, 1473, 30000]:
    for to in [ours, peer, ours]:
        data = bytes((size + i) % 251 for i in range(size))
        one.sendto(data, (to, port))
        answer, who = one.recvfrom(65536)
        assert answer == data and who == (to, port), (size, to, who, len(answer))

# With a peer, and to nobody.
two = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
two.settimeout(30)
two.connect((ours, port))
two.send(b"hello")
assert two.recv(100) == b"hello"
assert two.getsockname()[0] == ours, two.getsockname()
none = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
none.settimeout(30)
none.connect((ours, 9))
none.send(b"hello")
try:
    none.recv(100)
    raise SystemExit("somebody answered")
except ConnectionRefusedError:
    pass
print("done")
