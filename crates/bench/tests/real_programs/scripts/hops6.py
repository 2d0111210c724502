# The same as hops.py over IPv6, and a packet that is too long for a link on the way.
import errno, socket, struct, sys

far, near, mtu = sys.argv[1], sys.argv[2], int(sys.argv[3])
IPV6_RECVERR, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO, SO_EE_ORIGIN_ICMP6 = 25, 23, 2, 3

def error_of(hops, size=32):
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)
    s.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, hops)
    s.settimeout(10)
    s.connect((far, 33434))
    s.send(b"x" * size)
    try:
        s.recv(100)
    except OSError as error:
        _, ancillary, _, _ = s.recvmsg(100, 512, socket.MSG_ERRQUEUE)
        data = ancillary[0][2]
        _, origin, kind, code, _, info = struct.unpack("=IBBBBI", data[:12])
        offender = socket.inet_ntop(socket.AF_INET6, data[24:40])
        assert origin == SO_EE_ORIGIN_ICMP6, origin
        return error.errno, kind, code, info, offender
    raise SystemExit("an answer instead of an error")

hop = error_of(1)
assert hop == (errno.EHOSTUNREACH, 3, 0, 0, near), f"time exceeded from the forwarding host, not {hop}"
end = error_of(2)
assert end == (errno.ECONNREFUSED, 1, 4, 0, far), f"port unreachable from the far host, not {end}"
long = error_of(64, mtu + 1 - 48)
assert long == (errno.EMSGSIZE, 2, 0, mtu, near), f"too big from the forwarding host, not {long}"
fits = error_of(64, mtu - 48)
assert fits == end, f"what fits arrives, not {fits}"
print("done")
