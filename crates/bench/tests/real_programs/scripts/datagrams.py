"""Datagrams of every size: datagrams.py serve|ask ADDRESS PORT.

`serve` prints `ready` and echoes. `ask` sends one at a time, from none to the most that fits, in fragments from 1473
bytes on, over a socket without a peer and over one with, and prints `all echoed`.
"""
import socket
import sys

role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
LENGTHS = [0, 1, 2, 100, 1471, 1472, 1473, 2960, 2961, 9000, 40000, 65507]


def message(length, round):
    return bytes((i * 7 + i // 256 + round) & 255 for i in range(length))


s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if role == "serve":
    s.bind((address, port))
    print("ready", flush=True)
    while True:
        data, peer = s.recvfrom(65536)
        s.sendto(data, peer)

s.settimeout(30)
for length in LENGTHS:
    for round in range(3):
        s.sendto(message(length, round), (address, port))
        data, peer = s.recvfrom(65536)
        assert data == message(length, round), f"{length} bytes: {len(data)} others came back"
        assert peer == (address, port), f"from {peer}"
s.close()

s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(30)
s.connect((address, port))
for length in LENGTHS:
    s.send(message(length, 9))
    assert s.recv(65536) == message(length, 9), f"{length} bytes, with a peer"
# What does not fit is cut, and the rest is gone.
s.send(message(1000, 1))
assert s.recv(10) == message(10, 1)
s.send(b"next")
assert s.recv(10) == b"next"
# A look leaves it there.
s.send(b"again")
assert s.recv(10, socket.MSG_PEEK) == b"again" and s.recv(10) == b"again"
print("all echoed", flush=True)
