"""Both ends of the tests about several engines, and of others that want many connections. Each is told what to do, and at which ADDRESS:PORT."""

import select
import socket
import sys

COUNT = 64
WAITING = 32


def place(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


def connect(to, bound=None):
    one = socket.socket()
    if bound:
        one.bind(bound)
    one.settimeout(30)
    one.connect(to)
    return one


def echo(one, number):
    question = b"%06d" % number * 100
    one.sendall(question)
    answer = b""
    while len(answer) < len(question):
        part = one.recv(65536)
        if not part:
            raise ConnectionError("it ended")
        answer += part
    if answer != question:
        raise ValueError("another answer")


def resets(connections):
    """How many of them are reset within the time-out."""
    count = 0
    for one in connections:
        try:
            while one.recv(65536):
                pass
        except ConnectionResetError:
            count += 1
    return count


def ends(connections):
    """How many of them end in good order within the time-out."""
    for one in connections:
        while one.recv(65536):
            pass
    return len(connections)


def accept(at):
    """Echoes on all connections by one epoll, until one says `last`: then that one is the last accepted, and the server
    ends once WAITING more wait to be accepted."""
    listener = socket.create_server(at, backlog=128)
    print("ready", flush=True)
    poll = select.epoll()
    poll.register(listener.fileno(), select.EPOLLIN)
    connections = {}
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                one, _ = listener.accept()
                connections[one.fileno()] = one
                poll.register(one.fileno(), select.EPOLLIN)
                continue
            data = connections[fd].recv(65536)
            if data == b"last":
                poll.unregister(listener.fileno())
                connections[fd].sendall(b"it is")
                connections[fd].recv(1)  # the others wait by now
                listener.close()
                return
            if data:
                connections[fd].sendall(data)
            else:
                poll.unregister(fd)
                connections.pop(fd).close()


def connect_all(to):
    connections = [connect(to) for _ in range(COUNT)]
    for number, one in enumerate(connections):
        echo(one, number)
    print("echoed", len(connections))


def wait_for_reset(to):
    last = connect(to)
    last.sendall(b"last")
    last.recv(5)
    waiting = [connect(to) for _ in range(WAITING)]
    last.sendall(b".")
    print("reset", resets(waiting))


def hold(to):
    connections = [connect(to) for _ in range(COUNT)]
    for number, one in enumerate(connections):
        echo(one, number)
    print("held", len(connections), flush=True)
    print("ended", ends(connections))


def bound(own, to):
    with connect(to, own) as one:
        for number in range(20):
            echo(one, number)
    print("echoed")


def anywhere(to):
    """Sockets whose ports the kernel chooses: none may be that of a connection in TIME-WAIT."""
    for _ in range(1500):
        one = socket.socket()
        one.bind(("", 0))
        one.settimeout(30)
        one.connect(to)
        one.close()
    print("connected")


def datagrams(host):
    """Sockets at neighbouring ports, which are different engines', ask each other."""
    sockets = []
    for port in range(7100, 7104):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.settimeout(30)
        one.bind((host, port))
        sockets.append(one)
    for sender in sockets:
        for receiver in sockets:
            if sender is receiver:
                continue
            sender.sendto(b"?" * 5000, receiver.getsockname())
            data, source = receiver.recvfrom(65536)
            assert (data, source) == (b"?" * 5000, sender.getsockname())
    print("echoed")


def main():
    what, *places = sys.argv[1:]
    if what == "datagrams":
        datagrams(*places)
    else:
        actions = {
            "accept": accept,
            "connect": connect_all,
            "wait_for_reset": wait_for_reset,
            "hold": hold,
            "bound": bound,
            "anywhere": anywhere,
        }
        actions[what](*map(place, places))


main()
