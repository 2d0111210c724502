"""The other host of the comparison: does what a case tells it, one line at a time, and answers each when it is done.

    peer.py ADDRESS PORT

A case connects to PORT and says, for sockets that it names by a letter:
listen L | accept L C | connect C HOST PORT | send C TEXT | fill C BYTES | urgent C BYTE | read C BYTES | drain C |
shut C | close C | reset C | bind D | sendto D HOST PORT TEXT | recvfrom D
All sockets of a case are closed when its connection ends.
"""
import errno, socket, struct, sys

HOST = sys.argv[1]
PATIENCE_S = 8


class Case:
    def __init__(self):
        self.sockets = {}

    def add(self, name, s):
        s.settimeout(PATIENCE_S)
        self.sockets[name] = s
        return "ok"

    def listen(self, name, backlog="16"):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind((HOST, 0))
        s.listen(int(backlog))
        self.add(name, s)
        return str(s.getsockname()[1])

    def accept(self, name, new):
        return self.add(new, self.sockets[name].accept()[0])

    def connect(self, name, host, port):
        s = socket.socket()
        self.add(name, s)
        s.connect((host, int(port)))
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return "ok"

    def send(self, name, text):
        self.sockets[name].sendall(text.encode())
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
        return got.decode() if len(got) < 64 else f"{len(got)} bytes"

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

    def bind(self, name):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.bind((HOST, 0))
        self.add(name, s)
        return str(s.getsockname()[1])

    def sendto(self, name, host, port, text):
        self.sockets[name].sendto(text.encode(), (host, int(port)))
        return "ok"

    def recvfrom(self, name):
        return self.sockets[name].recv(1 << 16).decode()

    def end(self):
        for s in self.sockets.values():
            s.close()


def serve(control):
    case = Case()
    with control, control.makefile("rw", newline="\n") as lines:
        for line in lines:
            command, *arguments = line.split()
            try:
                answer = getattr(case, command)(*arguments)
            except TimeoutError:
                answer = "timed out"
            except OSError as error:
                answer = errno.errorcode.get(error.errno, str(error))
            lines.write(answer + "\n")
            lines.flush()
    case.end()


listener = socket.create_server((HOST, int(sys.argv[2])), backlog=8)
print("ready", flush=True)
while True:
    try:
        serve(listener.accept()[0])
    except OSError:
        pass  # a case that ended in the middle
