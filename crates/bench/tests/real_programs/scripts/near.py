"""Two workers, on cores 0 and 1, that accept: near.py HOW ADDRESS:PORT. HOW: `accept`, an epoll each with EPOLLEXCLUSIVE
(`exclusive`), or without (`shared`), all from one listening socket; or a listening socket each, with SO_REUSEPORT and
SO_INCOMING_CPU (`group`). Each prints `worker PID`, tells whoever connects on which core it runs and what SO_INCOMING_CPU says
of the connection, and goes on when the peer has ended."""

import os
import select
import signal
import socket
import sys

SO_INCOMING_CPU = 49


def in_group(at, core):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if core == 0:  # the one says so before it is bound, the other when it listens
        listener.setsockopt(socket.SOL_SOCKET, SO_INCOMING_CPU, core)
    listener.bind(at)
    listener.listen(128)
    if core == 1:
        listener.setsockopt(socket.SOL_SOCKET, SO_INCOMING_CPU, core)
    assert listener.getsockopt(socket.SOL_SOCKET, SO_INCOMING_CPU) == core
    return listener


def accepted(listener, how):
    """Connections, one after the other."""
    if how in ("accept", "group"):
        while True:
            yield listener.accept()[0]
    listener.setblocking(False)
    waits = select.epoll()
    alone = select.EPOLLEXCLUSIVE if how == "exclusive" else 0
    waits.register(listener, select.EPOLLIN | alone)
    while True:
        waits.poll()
        try:
            one = listener.accept()[0]
        except BlockingIOError:
            continue  # the other worker was first
        one.setblocking(True)
        yield one


def work(listener, how, at, core):
    os.sched_setaffinity(0, {core})
    if how == "group":
        listener = in_group(at, core)
    os.write(1, b"worker %d\n" % os.getpid())  # in one piece: both write there
    for one in accepted(listener, how):
        lives_on = one.getsockopt(socket.SOL_SOCKET, SO_INCOMING_CPU)
        one.sendall(b"%d %d\n" % (core, lives_on))
        one.recv(1)
        one.close()


how, at = sys.argv[1:]
host, port = at.rsplit(":", 1)
at = host, int(port)
listener = None if how == "group" else socket.create_server(at, backlog=128)
for core in (0, 1):
    if os.fork() == 0:
        work(listener, how, at, core)
signal.pause()
