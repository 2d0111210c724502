"""Sends bad packets: raw.py DEVICE ETHERNET-ADDRESS SOURCE-ADDRESS ADDRESS CASE COUNT, over AF_PACKET."""
import random
import socket
import struct
import sys

device, ethernet, source, address, case, count = sys.argv[1:7]
packet = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
packet.bind((device, 0))
source, address = socket.inet_aton(source), socket.inet_aton(address)
TO, FROM = bytes.fromhex(ethernet.replace(":", "")), packet.getsockname()[4]
TCP, UDP, ICMP = 6, 17, 1


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def eth(payload, kind=0x0800):
    return TO + FROM + struct.pack("!H", kind) + payload


def ip(protocol, payload, version=4, words=5, length=None, to=address, bad=0):
    length = 20 + len(payload) if length is None else length
    head = struct.pack("!BBHHHBBH4s4s", version << 4 | words, 0, length, 1, 0x4000, 64, protocol, 0, source, to)
    return head[:10] + struct.pack("!H", checksum(head) ^ bad) + head[12:] + payload


def transport(protocol, head, at, payload=b"", bad=0):
    """Fills in the checksum that stands at byte `at`."""
    length = len(head) + len(payload)
    pseudo = b"" if protocol == ICMP else source + address + struct.pack("!BBH", 0, protocol, length)
    value = checksum(pseudo + head + payload) ^ bad
    return head[:at] + struct.pack("!H", value) + head[at + 2 :] + payload


def tcp(flags=0x02, offset=5, bad=0, payload=b""):
    port, sequence = random.randrange(1024, 65536), random.getrandbits(32)
    head = struct.pack("!HHIIBBHHH", port, 80, sequence, 0, offset << 4, flags, 65535, 0, 0)
    return transport(TCP, head, 16, payload, bad)


def udp(bad=0):
    return transport(UDP, struct.pack("!HHHH", 4000, 9, 8 + 4, 0), 6, b"data", bad)


def echo(bad=0):
    return transport(ICMP, struct.pack("!BBHHH", 8, 0, 0, 1, 1), 2, b"data", bad)


def noise():
    kinds = [(TCP, tcp(random.choice([0x02, 0x10, 0x12, 0x18, 0x11, 0x04]), payload=b"x" * random.randrange(100)))]
    kinds += [(UDP, udp()), (ICMP, echo())]
    protocol, payload = random.choice(kinds)
    frame = bytearray(eth(ip(protocol, payload)))
    for _ in range(random.randrange(4)):
        frame[random.randrange(12, len(frame))] = random.getrandbits(8)
    return bytes(frame[: random.randrange(14, len(frame) + 1)])


CASES = {
    "truncated-ip": lambda: eth(ip(TCP, b"")[:12]),
    "longer-than-frame": lambda: eth(ip(TCP, tcp(), length=400)),
    "truncated-tcp": lambda: eth(ip(TCP, tcp()[:10])),
    "truncated-udp": lambda: eth(ip(UDP, udp()[:6])),
    "truncated-icmp": lambda: eth(ip(ICMP, echo()[:4])),
    "truncated-arp": lambda: eth(b"\0\1\x08\0\6\4\0\1", 0x0806),
    "ip-version": lambda: eth(ip(TCP, tcp(), version=5)),
    "ip-header-length": lambda: eth(ip(TCP, tcp(), words=3)),
    "tcp-data-offset": lambda: eth(ip(TCP, tcp(offset=3))),
    "ip-checksum": lambda: eth(ip(TCP, tcp(), bad=0x1234)),
    "tcp-checksum": lambda: eth(ip(TCP, tcp(bad=0x1234))),
    "udp-checksum": lambda: eth(ip(UDP, udp(bad=0x1234))),
    "icmp-checksum": lambda: eth(ip(ICMP, echo(bad=0x1234))),
    "unknown-protocol": lambda: eth(ip(253, b"experiment")),
    "unknown-ethertype": lambda: eth(b"experiment", 0x88B5),
    "other-address": lambda: eth(ip(TCP, tcp(), to=socket.inet_aton("192.0.2.1"))),
    "noise": noise,
}

random.seed(f"{case}/{count}")
for _ in range(int(count)):
    packet.send(CASES[case]())
