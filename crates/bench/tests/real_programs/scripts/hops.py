# Sends datagrams with few hops to go, and looks which errors come back: what traceroute does. With an MTU also one that
# is too long for a link on the way, and one that fits: hops.py FAR NEAR [MTU]
import errno, ipaddress, socket, struct, sys

far, near = sys.argv[1:3]
mtu = int(sys.argv[3]) if len(sys.argv) > 3 else None
PMTUDISC_DO = 2
if ipaddress.ip_address(far).version == 6:
    family, level, headers, offender_at = socket.AF_INET6, socket.IPPROTO_IPV6, 48, slice(24, 40)
    HOPS, RECVERR, MTU_DISCOVER, ORIGIN_ICMP = socket.IPV6_UNICAST_HOPS, 25, 23, 3
    # RFC 4443: types and codes
    exceeded, unreachable, too_big = (3, 0), (1, 4), (2, 0)
else:
    family, level, headers, offender_at = socket.AF_INET, socket.IPPROTO_IP, 28, slice(20, 24)
    HOPS, RECVERR, MTU_DISCOVER, ORIGIN_ICMP = socket.IP_TTL, 11, 10, 2
    # RFC 792, RFC 1191
    exceeded, unreachable, too_big = (11, 0), (3, 3), (3, 4)

def error_of(hops, size=32):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.setsockopt(level, RECVERR, 1)
    s.setsockopt(level, MTU_DISCOVER, PMTUDISC_DO)
    s.setsockopt(level, HOPS, hops)
    s.settimeout(30)
    s.connect((far, 33434))
    s.send(b"x" * size)
    try:
        s.recv(100)
    except OSError as error:
        _, ancillary, _, _ = s.recvmsg(100, 512, socket.MSG_ERRQUEUE)
        data = ancillary[0][2]
        # struct sock_extended_err, and the address behind it
        _, origin, kind, code, _, info = struct.unpack("=IBBBBI", data[:12])
        assert origin == ORIGIN_ICMP, origin
        return error.errno, (kind, code), info, socket.inet_ntop(family, data[offender_at])
    raise SystemExit("an answer instead of an error")

hop = error_of(1)
assert hop == (errno.EHOSTUNREACH, exceeded, 0, near), f"time exceeded from the forwarding host, not {hop}"
end = error_of(2)
assert end == (errno.ECONNREFUSED, unreachable, 0, far), f"port unreachable from the far host, not {end}"
if mtu:
    long = error_of(64, mtu + 1 - headers)
    assert long == (errno.EMSGSIZE, too_big, mtu, near), f"too big from the forwarding host, not {long}"
    fits = error_of(64, mtu - headers)
    assert fits == end, f"what fits arrives, not {fits}"
print("done")
