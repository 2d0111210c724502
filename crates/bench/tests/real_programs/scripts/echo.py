"""Sends datagrams back: echo.py ADDRESS PORT. Says "ready"."""

import socket
import sys

one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
while True:
    data, peer = one.recvfrom(65536)
    one.sendto(data, peer)
