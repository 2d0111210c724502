"""A router's advertisement, from a raw socket on the kernel: `DEVICE PREFIX LIFETIME`."""
import socket
import struct
import sys

ALL_NODES = "ff02::1"


def advertisement(prefix, lifetime):
    # RFC 4861 §4.2: hop limit, flags, router lifetime; reachable and retransmission time. The kernel sums.
    message = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)
    # §4.6.2: on link and autonomous, valid and preferred for so long.
    message += struct.pack("!BBBBIII", 3, 4, 64, 0xC0, lifetime, lifetime, 0)
    return message + socket.inet_pton(socket.AF_INET6, prefix)


device, prefix, lifetime = sys.argv[1:4]
router = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
router.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
router.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, socket.if_nametoindex(device))
router.sendto(advertisement(prefix, int(lifetime)), (ALL_NODES, 0, 0, socket.if_nametoindex(device)))
