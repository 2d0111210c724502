"""Options of TCP: set, read back, and what TCP_INFO says of a connection that has carried data. The same on the kernel."""
import socket, struct, sys, time

TCP = socket.IPPROTO_TCP
TCP_MAXSEG, TCP_CORK, TCP_INFO, TCP_QUICKACK, TCP_CONGESTION, TCP_USER_TIMEOUT, TCP_NOTSENT_LOWAT = 2, 3, 11, 12, 13, 18, 25
SO_MAX_PACING_RATE = 47
ESTABLISHED, CLOSE, LISTEN = 1, 7, 10


def errno_of(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return 0


def info(s):
    return s.getsockopt(TCP, TCP_INFO, 240)


def word(s, at):
    return struct.unpack_from("=I", info(s), at)[0]


def congestion(s):
    return s.getsockopt(TCP, TCP_CONGESTION, 16).rstrip(b"\0").decode()


def before(s):
    """Set while it is nobody's yet."""
    s.setsockopt(TCP, TCP_USER_TIMEOUT, 31000)
    s.setsockopt(TCP, TCP_MAXSEG, 1000)
    assert s.getsockopt(TCP, TCP_MAXSEG) == 1000
    s.setsockopt(TCP, TCP_CONGESTION, b"reno")


def after(s):
    assert s.getsockopt(TCP, TCP_USER_TIMEOUT) == 31000
    # On the kernel the test bed's route has the last word.
    assert congestion(s) == "reno" or sys.argv[4] == "kernel", congestion(s)
    segment = s.getsockopt(TCP, TCP_MAXSEG)
    assert 960 <= segment <= 1000, segment
    s.setsockopt(TCP, TCP_CONGESTION, b"cubic")
    assert congestion(s) == "cubic"
    assert errno_of(s.setsockopt, TCP, TCP_CONGESTION, b"nonsense") == 2
    assert congestion(s) == "cubic"
    assert errno_of(s.setsockopt, TCP, TCP_USER_TIMEOUT, -1) == 22
    assert errno_of(s.setsockopt, TCP, TCP_MAXSEG, 40) == 22
    s.setsockopt(TCP, TCP_QUICKACK, 0)
    assert s.getsockopt(TCP, TCP_QUICKACK) == 0
    s.setsockopt(TCP, TCP_QUICKACK, 1)
    assert s.getsockopt(TCP, TCP_QUICKACK) == 1
    s.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 10_000_000)


def transfer(s):
    data = bytes(range(256)) * 400
    began = time.monotonic()
    s.sendall(data)
    got = b""
    while len(got) < len(data):
        piece = s.recv(65536)
        assert piece
        got += piece
    assert got == data
    return time.monotonic() - began


def connected(s):
    transfer(s)
    image = info(s)
    assert len(image) >= 232, len(image)
    assert image[0] == ESTABLISHED, image[0]
    assert image[5] & 0x7 == 0x7, "timestamps, SACK and scaling: %x" % image[5]
    rto, segment = word(s, 8), word(s, 16)
    assert 200_000 <= rto <= 3_000_000, rto
    assert 960 <= segment <= 1000, segment
    assert 0 < word(s, 68) < 1_000_000, "a round trip"
    assert 0 < word(s, 148) <= word(s, 68) * 2 + 1000, "the least"
    assert word(s, 80) >= 2, "a window"
    acknowledged, received = struct.unpack_from("=QQ", info(s), 120)
    # Linux counts the SYN.
    assert acknowledged - 256 * 400 in (0, 1) and received == 256 * 400, (acknowledged, received)
    assert word(s, 140) > 0 and word(s, 136) > 0, "segments"
    # Ten megabytes a second: 100 KB there take 10 ms.
    for _ in range(3):
        assert transfer(s) > 0.005


def main():
    address, port = sys.argv[1], int(sys.argv[2])
    listener = socket.socket()
    listener.setsockopt(TCP, TCP_CONGESTION, b"reno")
    listener.bind((sys.argv[3], 0))
    assert info(listener)[0] == CLOSE
    listener.listen(7)
    assert info(listener)[0] == LISTEN
    assert congestion(listener) == "reno"
    s = socket.socket()
    before(s)
    s.connect((address, port))
    after(s)
    connected(s)
    s.close()
    print("all as it should be", flush=True)


main()
