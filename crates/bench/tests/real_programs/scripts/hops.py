# Sends datagrams with few hops to go, and looks which errors come back: what traceroute does.
import errno, socket, struct, sys

far, near = sys.argv[1:3]
IP_RECVERR, SO_EE_ORIGIN_ICMP = 11, 2

def error_of(ttl, destination, size=32, discover=None):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
    s.settimeout(10)
    s.connect((destination, 33434))
    s.send(b"x" * size)
    try:
        s.recv(100)
    except OSError as error:
        _, ancillary, _, _ = s.recvmsg(100, 512, socket.MSG_ERRQUEUE)
        data = ancillary[0][2]
        _, origin, kind, code = struct.unpack("=IBBB", data[:7])
        offender = socket.inet_ntoa(data[20:24])
        assert origin == SO_EE_ORIGIN_ICMP, origin
        return error.errno, kind, code, offender
    raise SystemExit("an answer instead of an error")

hop = error_of(1, far)
assert hop == (errno.EHOSTUNREACH, 11, 0, near), f"time exceeded from the forwarding host, not {hop}"
end = error_of(2, far)
assert end == (errno.ECONNREFUSED, 3, 3, far), f"port unreachable from the far host, not {end}"
print("done")
