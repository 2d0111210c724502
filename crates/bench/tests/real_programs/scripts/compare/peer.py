"""The other host of the comparison: does what a case tells it, one line at a time, and answers each when it is done.

    peer.py ADDRESS PORT

A case connects to PORT and says, for sockets that it names by a letter:
listen L | accept L C | connect C HOST PORT | send C TEXT | line C WORDS | fill C BYTES | urgent C BYTE | read C BYTES | drain C |
shut C | close C | reset C | bind D | sendto D HOST PORT TEXT | recvfrom D | sendto_empty D HOST PORT |
option S LEVEL NAME VALUE | fast C HOST PORT TEXT | sendto_long D HOST PORT BYTES | recvmsg D | bind_any D PORT |
join D GROUP | beside D HOST | ip S NAME VALUE (tos, ttl, recvtos, recvttl) | connect_with C HOST PORT SERVICE |
soon C BYTES | burst D COUNT | watch W | watched W PORT KINDS | pieces W | watch_times D | unreachable C CODE
and, for `random`, which has to know that what it has caused is over before it goes on:
arrived C BYTES [end] | taken C BYTES | pattern C START BYTES | acknowledged C | finish C (end, reset) | datagram D |
connect_port C | nothing
An address of the program may be a mapped one: what it says to us is IPv4 then.
All sockets of a case are closed when its connection ends.
"""
import errno, fcntl, select, socket, struct, sys, termios, time, zlib

HOST = sys.argv[1]


def family_of(host):
    return socket.AF_INET6 if ":" in host else socket.AF_INET


FAMILY = family_of(HOST)
EVERYWHERE = "::" if FAMILY == socket.AF_INET6 else ""
LEVEL = socket.IPPROTO_IPV6 if FAMILY == socket.AF_INET6 else socket.IPPROTO_IP
OPTIONS = {
    socket.AF_INET: {"tos": socket.IP_TOS, "ttl": socket.IP_TTL, "recvtos": socket.IP_RECVTOS, "recvttl": 12},
    socket.AF_INET6: {
        "tos": socket.IPV6_TCLASS,
        "ttl": socket.IPV6_UNICAST_HOPS,
        "recvtos": socket.IPV6_RECVTCLASS,
        "recvttl": socket.IPV6_RECVHOPLIMIT,
    },
}[FAMILY]
TTL, TOS = (socket.IPV6_HOPLIMIT, socket.IPV6_TCLASS) if FAMILY == socket.AF_INET6 else (socket.IP_TTL, socket.IP_TOS)
PATIENCE_S = 8


def network_header(packet):
    """Protocol, type of service, hops, whether it may be cut on its way, and what it carries, without the link's padding."""
    if packet[0] >> 4 == 6:
        first, length, protocol, hops = struct.unpack("!IHBB", packet[:8])
        return protocol, first >> 20 & 0xFF, hops, False, packet[40 : 40 + length]
    length = struct.unpack("!H", packet[2:4])[0]
    return packet[9], packet[1], packet[8], not packet[6] & 0x40, packet[(packet[0] & 15) * 4 : length]


class Case:
    def __init__(self):
        self.sockets = {}
        # By both ports: where the data that `watched` has told of end, as a sequence number.
        self.told = {}

    def add(self, name, s):
        s.settimeout(PATIENCE_S)
        self.sockets[name] = s
        return "ok"

    def listen(self, name, backlog="16", port="0"):
        s = socket.socket(FAMILY)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind((HOST, int(port)))
        s.listen(int(backlog))
        self.add(name, s)
        return str(s.getsockname()[1])

    def accept(self, name, new):
        return self.add(new, self.sockets[name].accept()[0])

    def connect(self, name, host, port):
        s = socket.socket(family_of(host))
        self.add(name, s)
        s.connect((host, int(port)))
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return "ok"

    def connect_with(self, name, host, port, service):
        """As connect, with a type of service."""
        s = socket.socket(FAMILY)
        self.add(name, s)
        s.setsockopt(LEVEL, OPTIONS["tos"], int(service))
        s.connect((host, int(port)))
        return "ok"

    def watch(self, name):
        """Begins to look at what comes."""
        every_ip = socket.htons(0x86DD if FAMILY == socket.AF_INET6 else 0x0800)
        return self.add(name, socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, every_ip))

    def watched(self, name, port, *kinds):
        """Type of service, TTL and DF (IPv6's may not be cut) of segments from a port, by kind: S SA D(ata) F R. Waits until each has come.

        Data that were told of are not again: where the machine stands still for a moment they are sent a second time, as
        the sender's options are by then.
        """
        found = {kind: set() for kind in kinds}
        while not all(found.values()):
            packet, (_, _, direction, *_) = self.sockets[name].recvfrom(1 << 16)
            protocol, service, hops, divisible, segment = network_header(packet)
            if direction != socket.PACKET_HOST or protocol != 6 or segment[:2] != struct.pack("!H", int(port)):
                continue
            flags, data = segment[13], len(segment) - (segment[12] >> 4) * 4
            kind = {2: "S", 18: "SA"}.get(flags & 18 if flags & 2 else 0)
            kind = kind or ("R" if flags & 4 else "D" if data else "F" if flags & 1 else "A")
            if kind == "D":
                end = struct.unpack("!I", segment[4:8])[0] + data & 0xFFFFFFFF
                if (self.told.get(segment[:4], end - 1) - end) & 0xFFFFFFFF < 1 << 31:
                    continue
                self.told[segment[:4]] = end
            whole = "divisible" if divisible else "whole"
            found.setdefault(kind, set()).add(f"{service:#x}/{hops}/{whole}")
        return " ".join(f"{kind}:{'+'.join(sorted(found[kind]))}" for kind in kinds)

    def pieces(self, name):
        """How long the fragments of a datagram over IPv6 are, from the first on."""
        lengths, last = [], False
        while not last:
            packet, (_, _, direction, *_) = self.sockets[name].recvfrom(1 << 16)
            protocol, _, _, _, carried = network_header(packet)
            if direction == socket.PACKET_HOST and protocol == 44:
                lengths.append(40 + len(carried))
                last = not carried[3] & 1
        return " ".join(map(str, lengths))

    def unreachable(self, name, code):
        """Says as a router would that what comes to us on this connection is not delivered (ICMP, RFC 792; ICMPv6, RFC 4443)."""
        s = self.sockets[name]
        # What the other side sends next: the kernel tells it to who repairs a connection (tcp_repair).
        repair, queue, number, receiving, off = 19, 20, 21, 1, -1
        s.setsockopt(socket.IPPROTO_TCP, repair, 1)
        s.setsockopt(socket.IPPROTO_TCP, queue, receiving)
        number = s.getsockopt(socket.IPPROTO_TCP, number) & 0xFFFFFFFF
        s.setsockopt(socket.IPPROTO_TCP, repair, off)
        (their, their_port), (our, our_port) = s.getpeername()[:2], s.getsockname()[:2]
        if FAMILY == socket.AF_INET6:
            quoted = struct.pack("!IHBB", 6 << 28, 20, 6, 64) + b"".join(socket.inet_pton(FAMILY, x) for x in (their, our))
            quoted += struct.pack("!HHI", their_port, our_port, number)
            # The kernel fills in the checksum (RFC 3542 §3.1).
            with socket.socket(FAMILY, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as raw:
                raw.sendto(struct.pack("!BBHI", 1, int(code), 0, 0) + quoted, (their, 0))
            return "ok"
        quoted = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40, 0, 0x4000, 64, 6, 0, *map(socket.inet_aton, (their, our)))
        quoted += struct.pack("!HHI", their_port, our_port, number)
        message = struct.pack("!BBHI", 3, int(code), 0, 0) + quoted
        total = sum(struct.unpack(f"!{len(message) // 2}H", message))
        total = (total & 0xFFFF) + (total >> 16)
        total = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
            raw.sendto(message[:2] + struct.pack("!H", total) + message[4:], (their, 0))
        return "ok"

    def fast(self, name, host, port, text):
        """Connects with TEXT in the SYN, if there is a cookie."""
        s = socket.socket(FAMILY)
        # Python's sockets with a timeout do not block, and without a cookie such a send gives up what it was to send.
        s.sendto(text.encode(), socket.MSG_FASTOPEN, (host, int(port)))
        return self.add(name, s)

    def send(self, name, text):
        self.sockets[name].sendall(text.encode())
        return "ok"

    def line(self, name, *words):
        self.sockets[name].sendall(" ".join(words).encode() + b"\n")
        return "ok"

    def fill(self, name, count):
        self.sockets[name].sendall(b"x" * int(count))
        return "ok"

    def urgent(self, name, byte):
        self.sockets[name].send(byte.encode(), socket.MSG_OOB)
        return "ok"

    def read(self, name, count):
        got = b""
        while len(got) < int(count):
            part = self.sockets[name].recv(int(count) - len(got))
            if not part:
                return f"{len(got)} then end"
            got += part
        return got.decode().replace("\n", "\\n") if len(got) < 64 else f"{len(got)} bytes"

    def soon(self, name, count):
        """What has come already."""
        s = self.sockets[name]
        s.settimeout(0)
        try:
            return s.recv(int(count)).decode()
        except BlockingIOError:
            return "nothing"
        finally:
            s.settimeout(PATIENCE_S)

    def drain(self, name):
        total = 0
        try:
            while part := self.sockets[name].recv(1 << 16):
                total += len(part)
        except OSError as error:
            return f"{total} then {errno.errorcode.get(error.errno, error)}"
        return f"{total} then end"

    def shut(self, name):
        self.sockets[name].shutdown(socket.SHUT_WR)
        return "ok"

    def close(self, name):
        self.sockets.pop(name).close()
        return "ok"

    def reset(self, name):
        s = self.sockets.pop(name)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
        return "ok"

    def bind(self, name, port="0"):
        s = socket.socket(FAMILY, socket.SOCK_DGRAM)
        s.bind((HOST, int(port)))
        self.add(name, s)
        return str(s.getsockname()[1])

    def sendto(self, name, host, port, text):
        self.sockets[name].sendto(text.encode(), (host, int(port)))
        return "ok"

    def beside(self, name, host):
        """A socket for datagrams at one of our other addresses."""
        s = socket.socket(family_of(host), socket.SOCK_DGRAM)
        s.bind((host, 0))
        self.add(name, s)
        return str(s.getsockname()[1])

    def recvfrom(self, name):
        return self.sockets[name].recv(1 << 16).decode()

    def burst(self, name, count):
        """So many datagrams, or until none comes for a while: how many, and which letters they begin with."""
        s, came = self.sockets[name], []
        s.settimeout(2)
        try:
            while len(came) < int(count):
                came.append(s.recv(1 << 16)[:1].decode())
        except TimeoutError:
            pass
        s.settimeout(PATIENCE_S)
        return f"{len(came)} of {''.join(sorted(set(came)))}"

    def watch_times(self, name):
        """Takes a datagram; whether its time is told beside it (SO_TIMESTAMPING)."""
        _, beside, _, _ = self.sockets[name].recvmsg(16, 256)
        scm_timestamping = 37
        return "told" if any(kind == scm_timestamping for _, kind, _ in beside) else "not told"

    def sendto_empty(self, name, host, port):
        self.sockets[name].sendto(b"", (host, int(port)))
        return "ok"

    def option(self, name, level, option, value):
        self.sockets[name].setsockopt(int(level), int(option), int(value))
        return "ok"

    def ip(self, name, option, value):
        self.sockets[name].setsockopt(LEVEL, OPTIONS[option], int(value))
        return "ok"

    def sendto_long(self, name, host, port, count):
        data = bytes(ord("a") + i % 26 for i in range(int(count)))
        self.sockets[name].sendto(data, (host, int(port)))
        return "ok"

    def recvmsg(self, name):
        """A datagram with its TTL and type of service; long ones are only counted."""
        s = self.sockets[name]
        data, beside, _, sender = s.recvmsg(1 << 16, 256)
        facts = {kind: value[0] for level, kind, value in beside if level == LEVEL}
        text = data.decode() if len(data) < 40 else f"{len(data)} bytes"
        ttl, tos = facts.get(TTL), facts.get(TOS)
        return f"{text}, ttl {ttl}, tos {tos}, from {sender[0]}"

    def join(self, name, group):
        """A socket of its own at a port that the host's sockets may share, in a group."""
        s = self.sockets[name]
        if FAMILY == socket.AF_INET6:
            device = struct.pack("i", socket.if_nametoindex("eth0"))
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.inet_pton(FAMILY, group) + device)
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, device)
            return "ok"
        s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + socket.inet_aton(HOST))
        s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(HOST))
        return "ok"

    def bind_any(self, name, port):
        """A socket that takes what comes to every address."""
        s = socket.socket(FAMILY, socket.SOCK_DGRAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        s.bind((EVERYWHERE, int(port)))
        self.add(name, s)
        return str(s.getsockname()[1])

    def wait(self, name, events):
        """Waits until a socket has one of these events."""
        poll = select.poll()
        poll.register(self.sockets[name], events)
        if not poll.poll(PATIENCE_S * 1000):
            raise TimeoutError

    def arrived(self, name, count, end=""):
        """Waits until so much is to be read, and until nothing will follow if it says so; acknowledges it at once."""
        s = self.sockets[name]
        if int(count):
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, int(count))
            self.wait(name, select.POLLIN)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        if end:
            self.wait(name, select.POLLRDHUP)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        there = struct.unpack("i", fcntl.ioctl(s, termios.FIONREAD, bytes(4)))[0]
        return "ok" if there == int(count) else f"{there} bytes"

    def taken(self, name, count):
        """Reads so much; its checksum."""
        got = b""
        while len(got) < int(count) and (part := self.sockets[name].recv(int(count) - len(got))):
            got += part
        return f"{len(got)} bytes {zlib.crc32(got):08x}"

    def pattern(self, name, start, count):
        self.sockets[name].sendall(bytes((int(start) + i) * 167 >> 3 & 255 for i in range(int(count))))
        return "ok"

    def acknowledged(self, name):
        """Waits until all that was sent is acknowledged: nothing tells of that."""
        deadline = time.monotonic() + PATIENCE_S
        while struct.unpack("i", fcntl.ioctl(self.sockets[name], termios.TIOCOUTQ, bytes(4)))[0]:
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.0005)
        return "ok"

    def finish(self, name, how):
        """Waits for the end or the reset, reads what there is, and closes: how much, its checksum, and how it ended."""
        self.wait(name, select.POLLRDHUP if how == "end" else 0)
        got, last = b"", "end"
        with self.sockets.pop(name) as s:
            try:
                while part := s.recv(1 << 16):
                    got += part
            except OSError as error:
                last = errno.errorcode.get(error.errno, str(error))
        return f"{len(got)} bytes {zlib.crc32(got):08x} then {last}"

    def datagram(self, name):
        """Takes a datagram: how long it is, its checksum, and from what port it is."""
        data, sender = self.sockets[name].recvfrom(1 << 16)
        return f"{sender[1]} {len(data)} bytes {zlib.crc32(data):08x}"

    def connect_port(self, name):
        return str(self.sockets[name].getsockname()[1])

    def nothing(self):
        return "ok"

    def end(self):
        for s in self.sockets.values():
            s.close()


def serve(control):
    case = Case()
    with control, control.makefile("rw", newline="\n") as lines:
        for line in lines:
            command, *arguments = [word.removeprefix("::ffff:") for word in line.split()]
            try:
                answer = getattr(case, command)(*arguments)
            except TimeoutError:
                answer = "timed out"
            except OSError as error:
                answer = errno.errorcode.get(error.errno, str(error))
            lines.write(answer + "\n")
            lines.flush()
    case.end()


# Several errors in a row are a part of what cases ask for.
for limit in "ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit":
    with open(f"/proc/sys/net/{limit}", "w") as file:
        file.write("0")
listener = socket.create_server((HOST, int(sys.argv[2])), family=FAMILY, backlog=8)
print("ready", flush=True)
while True:
    try:
        serve(listener.accept()[0])
    except OSError:
        pass  # a case that ended in the middle
