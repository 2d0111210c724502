"""What the scripts share. Each prints what it saw; natively and under the shim that must be the same."""
import os, socket, sys, threading, time, errno, struct

ADDRESS = os.environ["ADDRESS"]


def listener(backlog=64, kind=socket.SOCK_STREAM):
    s = socket.socket(socket.AF_INET, kind)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((ADDRESS, 0))
    if kind == socket.SOCK_STREAM:
        s.listen(backlog)
    return s


def pair():
    """Two connected stream sockets."""
    l = listener()
    c = socket.create_connection(l.getsockname())
    s, _ = l.accept()
    l.close()
    return c, s


def say(*what):
    print(*what, flush=True)


def failed(f, *args):
    """The name of the error that a call gives."""
    try:
        return f"no error: {f(*args)!r}"
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e))


def check_ours():
    """Under the shim the kernel must know nothing of the connection."""
    if os.environ.get("EXPECT_OURS"):
        # Address and port: another script, on the kernel's loopback, may have the same port at this moment.
        address, port = CHECK.getsockname()
        name = f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}:{port:04X}"
        with open("/proc/net/tcp") as f:
            assert not any(line.split()[1] == name for line in f), "the kernel serves this socket"


CHECK = None
