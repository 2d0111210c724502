"""How AF_INET6 sockets show and take addresses; the same on paths and on the kernel."""
import errno
import socket
import sys

OURS, OURS4, PEER, PEER4 = sys.argv[1:5]


def check(got, expected, what):
    assert got == expected, f"{what}: {got!r}, not {expected!r}"


def fails(number, call, what):
    try:
        call()
    except OSError as error:
        check(error.errno, number, what)
    else:
        raise AssertionError(f"{what}: it worked")


def inet6(kind=socket.SOCK_STREAM):
    one = socket.socket(socket.AF_INET6, kind)
    one.settimeout(30)
    return one


def echo(one, what):
    one.sendall(b"over " + what.encode())
    check(one.recv(100), b"over " + what.encode(), what)


def connects():
    with inet6() as one:
        one.connect((PEER, 7001))
        check(one.getpeername(), (PEER, 7001, 0, 0), "the peer's name")
        check(one.getsockname()[0], OURS, "our name")
        echo(one, "IPv6")
    with inet6() as one:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        one.connect(("::ffff:" + PEER4, 7001))
        check(one.getpeername(), ("::ffff:" + PEER4, 7001, 0, 0), "the mapped peer's name")
        check(one.getsockname()[0], "::ffff:" + OURS4, "our mapped name")
        echo(one, "IPv4 by a mapped address")
    with inet6() as one:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        fails(errno.ENETUNREACH, lambda: one.connect(("::ffff:" + PEER4, 7001)), "IPv4 where only IPv6 is wanted")
    with inet6() as one:
        fails(errno.ECONNREFUSED, lambda: one.connect((PEER, 7999)), "nobody listens")
    with inet6() as one:
        one.bind((OURS, 0))
        port = one.getsockname()[1]
        assert port != 0
        one.connect((PEER, 7001))
        check(one.getsockname(), (OURS, port, 0, 0), "what it was bound to")
        echo(one, "IPv6 from an address of its own choice")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        fails(errno.EADDRNOTAVAIL, lambda: one.bind(("10.99.99.99", 7)), "another's address")
    with inet6() as one:
        fails(errno.EADDRNOTAVAIL, lambda: one.bind(("2001:db8:99::1", 7)), "another's IPv6 address")


def datagrams():
    with inet6(socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        one.bind(("::", 7005))
        check(one.getsockname(), ("::", 7005, 0, 0), "a wildcard's name")
        for host in (PEER, "::ffff:" + PEER4):
            one.sendto(b"x" * 1000, (host, 7002))
            data, sender = one.recvfrom(2000)
            check((len(data), sender), (1000, (host, 7002, 0, 0)), "who answered")
            # Larger than the link carries.
            one.sendto(b"y" * 9000, (host, 7002))
            check(one.recvfrom(20000), (b"y" * 9000, (host, 7002, 0, 0)), "what came in fragments")
    with inet6(socket.SOCK_DGRAM) as one:
        one.connect((PEER, 7002))
        check(one.getsockname()[0], OURS, "a connected datagram socket's name")
        one.send(b"connected")
        check(one.recv(100), b"connected", "an echo")
    with inet6(socket.SOCK_DGRAM) as one:
        one.connect((PEER, 7999))
        one.send(b"to nobody")
        fails(errno.ECONNREFUSED, lambda: one.recv(100), "an ICMPv6 error")


def serves():
    """The peer connects over both families, when it is asked to."""
    server = inet6()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    server.bind(("::", 7003))
    server.listen()
    both = inet6(socket.SOCK_DGRAM)
    both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    both.bind(("::", 7004))
    # Beside it neither family has room.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        fails(errno.EADDRINUSE, lambda: one.bind(("0.0.0.0", 7004)), "a port that is taken for both")
    only = inet6(socket.SOCK_DGRAM)
    only.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    only.bind(("::", 7006))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("0.0.0.0", 7006))
    ask = inet6(socket.SOCK_DGRAM)
    ask.settimeout(20)
    ask.sendto(b"connect", (PEER, 7002))
    for host, ours in ((PEER, OURS), ("::ffff:" + PEER4, "::ffff:" + OURS4)):
        connection, peer = server.accept()
        check(peer[0], host, "who connected")
        check(connection.getsockname(), (ours, 7003, 0, 0), "where")
        check(connection.getpeername()[0], host, "who it is")
        connection.sendall(connection.recv(100))
        connection.close()
    for host, text in (("::ffff:" + PEER4, b"four"), (PEER, b"six")):
        data, sender = both.recvfrom(100)
        check((data, sender[0]), (text, host), "a datagram at both")
        both.sendto(data, sender)
    check(ask.recv(100), b"connect", "the peer is content")
    ask.sendto(b"end", (PEER, 7002))


connects()
datagrams()
serves()
print("done", flush=True)
