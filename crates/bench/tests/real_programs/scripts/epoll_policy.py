"""Tells each client by which scheduling policy its connection was accepted, and its request read."""
import os
import select
import socket
import sys

RESET_ON_FORK = 0x40000000


def policy():
    return os.sched_getscheduler(0) & ~RESET_ON_FORK


listener = socket.create_server(("", int(sys.argv[1])), backlog=16)
listener.setblocking(False)
events = select.epoll()
events.register(listener, select.EPOLLIN)
accepted = {}
print("ready", flush=True)
while True:
    for fd, _ in events.poll():
        if fd == listener.fileno():
            peer, _ = listener.accept()
            accepted[peer.fileno()] = peer, policy()
            events.register(peer, select.EPOLLIN)
        else:
            peer, then = accepted.pop(fd)
            peer.recv(100)
            peer.sendall(f"{then} {policy()}\n".encode())
            peer.close()
