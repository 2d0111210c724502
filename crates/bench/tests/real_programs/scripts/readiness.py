"""What poll and select report of two connections that are both readable: readiness.py poll|select PORT OTHER.

Each is first seen to be readable by itself. Prints `ready`, then what the first report of both has, what the first
report with the second has, and what is reported when the first has been read.
"""
import select
import socket
import sys

KIND, PORTS = sys.argv[1], [int(port) for port in sys.argv[2:4]]
NAMES = {}


def report(wanted, timeout):
    """Names of those that are reported readable."""
    if KIND == "select":
        found = {peer.fileno() for peer in select.select(wanted, [], [], timeout)[0]}
    else:
        poller = select.poll()
        for peer in wanted:
            poller.register(peer, select.POLLIN)
        found = {fd for fd, _ in poller.poll(None if timeout is None else timeout * 1000)}
    return [NAMES[peer] for peer in wanted if peer.fileno() in found]


def listen(port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", port))
    listener.listen()
    return listener


listeners = [listen(port) for port in PORTS]
print("ready", flush=True)
first, second = peers = [listener.accept()[0] for listener in listeners]
NAMES.update({first: "first", second: "second"})
for peer in peers:
    report([peer], None)
print("at once:", *report(peers, 0))
while "second" not in (names := report(peers, 0)):
    pass
print("then:", *names)
first.recv(100)
print("without the first:", *report(peers, 0), flush=True)
