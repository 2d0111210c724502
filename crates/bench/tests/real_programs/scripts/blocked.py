"""Blocks in one place until something happens: blocked.py PLACE PEER-ADDRESS PEER-PORT OWN-PORT.

Prints `ready` before it blocks, then the name of the error that it gets, or what it got instead.
"""
import errno
import select
import socket
import sys

place, address, port, own_port = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


def connected():
    return socket.create_connection((address, port))


def listening():
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("0.0.0.0", own_port))
    s.listen()
    return s


s = listening() if "accept" in place else connected()
if place == "send":
    # Until both sides' buffers are full, and a while longer.
    s.settimeout(0.5)
    try:
        while True:
            s.send(b"x" * 65536)
    except TimeoutError:
        s.settimeout(None)
print("ready", flush=True)
try:
    if place == "recv":
        got = s.recv(1)
    elif place == "send":
        # What still found room is told first, as partial success.
        while True:
            got = s.send(b"x" * 65536)
    elif place == "accept":
        got = s.accept()
    elif place == "poll":
        poll = select.poll()
        poll.register(s, select.POLLIN)
        events = poll.poll()
        got = (events, s.recv(1))
    elif place == "select":
        events = select.select([s], [], [])
        got = (events, s.recv(1))
    elif place in ("epoll", "epoll-accept"):
        epoll = select.epoll()
        epoll.register(s, select.EPOLLIN)
        events = epoll.poll()
        got = (events, s.recv(1) if place == "epoll" else s.accept())
    print(f"no error, but {got}")
except OSError as error:
    print(errno.errorcode[error.errno])
