"""Asks an echo of datagrams: ask.py ADDRESS PORT. Prints the address that it asked from, or the error."""

import socket
import sys

one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.settimeout(30)
try:
    one.connect((sys.argv[1], int(sys.argv[2])))
    one.send(b"hello")
    assert one.recv(100) == b"hello"
    print(one.getsockname()[0])
except OSError as error:
    print(error)
