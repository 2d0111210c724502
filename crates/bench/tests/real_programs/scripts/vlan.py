"""A neighbour on a network with tags: vlan.py DEVICE VLAN OURS THEIRS. Frames are made and read here, tags included."""

import socket
import struct
import sys
import time

device, vlan, ours, theirs = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]

SOL_PACKET, PACKET_AUXDATA, VLAN_VALID = 263, 8, 1 << 4
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
link.bind((device, 0))
link.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
mac = link.getsockname()[4]


def send(to, tag, kind, payload):
    tagged = struct.pack("!HH", 0x8100, tag) if tag is not None else b""
    link.send((to + mac + tagged + struct.pack("!H", kind) + payload).ljust(64, b"\0"))


def receive(wanted, limit):
    """The next frame for us that `wanted` says yes to: its tag, type and payload; none within the limit."""
    end = time.monotonic() + limit
    while (left := end - time.monotonic()) > 0:
        link.settimeout(left)
        try:
            frame, extra, _, name = link.recvmsg(65536, 256)
        except TimeoutError:
            return None
        tag = None
        # Linux takes the tag out and tells it beside.
        for level, kind, data in extra:
            if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
                status, _, _, _, _, tci, _ = struct.unpack("IIIHHHH", data)
                tag = tci if status & VLAN_VALID else None
        if name[2] != 4 and frame[:6] == mac and wanted(tag, frame[12:14], frame[14:]):
            return tag, frame[14:], frame[6:12]
    return None


def arp(operation, target_mac):
    return struct.pack("!HHBBH", 1, 0x800, 6, 4, operation) + mac + socket.inet_aton(ours) \
        + target_mac + socket.inet_aton(theirs)


def is_reply(tag, kind, payload):
    return kind == b"\x08\x06" and payload[6:8] == b"\0\2" and payload[14:18] == socket.inet_aton(theirs)


def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return struct.pack("!H", ~total & 0xffff)


# Neither another network nor the untagged one has the address.
for tag in [None, vlan + 1]:
    send(b"\xff" * 6, tag, 0x806, arp(1, bytes(6)))
assert receive(is_reply, 1) is None, "answered on another network"
send(b"\xff" * 6, vlan, 0x806, arp(1, bytes(6)))
answer = receive(is_reply, 10)
assert answer and answer[0] & 0xfff == vlan, answer
assert answer[0] >> 13 == 5, "the priority of what is sent"
peer = answer[2]

# An echo, short and long enough for the other kind of buffer.
for size in [56, 1400]:
    echo = struct.pack("!BBHHH", 8, 0, 0, 7, size) + bytes(i % 256 for i in range(size))
    echo = echo[:2] + checksum(echo) + echo[4:]
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(echo), 1, 0, 64, 1, 0) \
        + socket.inet_aton(ours) + socket.inet_aton(theirs)
    send(peer, vlan, 0x800, head[:10] + checksum(head) + head[12:] + echo)
    # The other side may ask who we are first.
    while True:
        got = receive(lambda tag, kind, payload: tag is not None, 10)
        assert got, "no echo"
        tag, payload, _ = got
        if payload[6:8] == b"\0\1" and payload[:2] == b"\0\1":
            send(peer, vlan, 0x806, arp(2, peer))
            continue
        assert tag & 0xfff == vlan and payload[9] == 1 and payload[20] == 0, payload[:28]
        assert payload[28:28 + size] == echo[8:], "the same data back"
        break
print("done")
