"""Threads in every kind of sleep while the daemon is killed."""
from common import *
import select

l = listener()
pairs = [pair() for _ in range(4)]
results = []


def run(name, f):
    try:
        results.append(f"{name} {f()}")
    except OSError as e:
        results.append(f"{name} {errno.errorcode[e.errno]}")


def accept():
    l.accept()


def recv():
    pairs[0][0].recv(10)


def send():
    while True:
        pairs[1][0].send(b"x" * 100000)


def epoll():
    ep = select.epoll()
    ep.register(pairs[2][0], select.EPOLLIN)
    return ep.poll(10)[0][1] & (select.EPOLLERR | select.EPOLLHUP) != 0


def poll():
    p = select.poll()
    p.register(pairs[3][0], select.POLLIN)
    return p.poll(10000)[0][1] & (select.POLLERR | select.POLLHUP) != 0


threads = [threading.Thread(target=run, args=(f.__name__, f)) for f in (accept, recv, send, epoll, poll)]
for t in threads:
    t.start()
say("ready")
for t in threads:
    t.join()
say(sorted(results))
a, b = socket.socketpair()
a.send(b"kernel works")
say(failed(pairs[0][1].recv, 1), b.recv(100).decode())
