"""Both ends of the test of many connections of one process. Each is told what to do, at which ADDRESS:PORT, and how many
they are: half of them go to the port behind, since a client has not ports enough for all to one."""

import os
import resource
import select
import socket
import sys


def place(text):
    host, port = text.rsplit(":", 1)
    return [(host, int(port)), (host, int(port) + 1)]


def accept_all(listeners, count):
    poll = select.epoll()
    for listener in listeners:
        listener.setblocking(False)
        poll.register(listener.fileno(), select.EPOLLIN)
    connections = []
    while len(connections) < count:
        poll.poll()
        for listener in listeners:
            try:
                while True:
                    connections.append(listener.accept()[0])
            except BlockingIOError:
                pass
    return connections


def serve(connections):
    """Echoes until all have ended."""
    poll = select.epoll()
    known = {one.fileno(): one for one in connections}
    for fd in known:
        poll.register(fd, select.EPOLLIN)
    while known:
        for fd, _ in poll.poll():
            data = known[fd].recv(65536)
            if data:
                known[fd].sendall(data)
            else:
                poll.unregister(fd)
                known.pop(fd).close()


def accept(at, count):
    """Accepts them, and has a child serve them, which alone has them then."""
    listeners = [socket.create_server(one, backlog=4096) for one in at]
    print("ready", flush=True)
    connections = accept_all(listeners, count)
    child = os.fork()
    if child == 0:
        serve(connections)
        os._exit(0)
    for one in connections:
        one.close()
    print("given away", len(connections), flush=True)
    print("child", os.waitpid(child, 0)[1])


def connect(to, count):
    """Opens them all, and then asks on each of them."""
    connections = []
    for number in range(count):
        one = socket.create_connection(to[number % 2], timeout=60)
        connections.append(one)
    for number, one in enumerate(connections):
        one.sendall(b"%08d" % number)
    for number, one in enumerate(connections):
        answer = one.recv(8, socket.MSG_WAITALL)
        if answer != b"%08d" % number:
            raise ValueError(f"{number} had {answer}")
    print("answered", len(connections))


what, where, many = sys.argv[1:]
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
{"accept": accept, "connect": connect}[what](place(where), int(many))
