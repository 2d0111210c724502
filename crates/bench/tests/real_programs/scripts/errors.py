"""Provokes errors and prints each: errors.py OWN-ADDRESS PEER-ADDRESS PORT-IN-USE PEER-PORT."""
import errno
import select
import signal
import socket
import sys

own, peer, port, peer_port = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
closed = 9  # nobody listens there
peer_network = peer.rsplit(".", 1)[0]


def told(what, provoke):
    try:
        result = f"no error, but {provoke()!r}"
    except TimeoutError as error:
        result = errno.errorcode[error.errno] if error.errno else "timed out"
    except OSError as error:
        result = errno.errorcode[error.errno]
    print(f"{what}: {result}", flush=True)


def bind(address, port):
    with socket.socket() as s:
        return s.bind((address, port)) or s.listen()


def connect(address, port):
    with socket.socket() as s:
        s.settimeout(None)
        return s.connect((address, port))


def connect_without_blocking():
    with socket.socket() as s:
        s.setblocking(False)
        assert s.connect_ex((peer, closed)) in (errno.EINPROGRESS, errno.ECONNREFUSED)
        poll = select.poll()
        poll.register(s, select.POLLOUT)
        poll.poll(10_000)
        raise OSError(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "")


def with_connection(use):
    with socket.create_connection((peer, peer_port)) as s:
        return use(s)


def send_after_shutdown(s):
    s.shutdown(socket.SHUT_WR)
    return s.send(b"x")


def receive_without_blocking(s):
    s.setblocking(False)
    return s.recv(1)


def receive_with_timeout(s):
    s.settimeout(0.2)
    return s.recv(1)


def datagram_to_closed_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((peer, closed))
        s.send(b"x")
        s.settimeout(30)
        return s.recv(1)


def long_datagram():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        return s.sendto(b"x" * 65_530, (peer, closed))


signal.signal(signal.SIGPIPE, signal.SIG_IGN)
told("bind to a port in use", lambda: bind("0.0.0.0", port))
told("bind to a port in use, at the address", lambda: bind(own, port))
told("bind to an address of others", lambda: bind("192.0.2.1", 7777))
told("connect to a closed port", lambda: connect(peer, closed))
told("connect to a closed port, without blocking", connect_without_blocking)
told("connect where nobody is", lambda: connect(f"{peer_network}.99", 80))
told("connect to a network without a route", lambda: connect("192.0.2.1", 80))
told("send on a closed connection", lambda: with_connection(send_after_shutdown))
told("receive without blocking", lambda: with_connection(receive_without_blocking))
told("receive with a time-out", lambda: with_connection(receive_with_timeout))
told("datagram to a closed port", datagram_to_closed_port)
told("datagram that is too long", long_datagram)
