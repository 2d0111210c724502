"""Blocking calls, names, partial reads, end of file, large transfers, half close."""
from common import *
import common, hashlib

l = listener()
common.CHECK = l
check_ours()
c = socket.create_connection(l.getsockname())
s, peer = l.accept()
assert peer == c.getsockname() and s.getpeername() == peer and c.getpeername() == l.getsockname()
say("type", s.type, s.family, s.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE), l.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
c.sendall(b"hello world")
time.sleep(0.05)
say(s.recv(5), s.recv(100, socket.MSG_PEEK), s.recv(100))
threading.Timer(0.1, lambda: c.sendall(b"late")).start()
say(s.recv(100))


def later():
    for part in (b"ab", b"cd", b"ef"):
        time.sleep(0.03)
        c.sendall(part)


threading.Thread(target=later).start()
say(s.recv(6, socket.MSG_WAITALL))

# Large, both ways at once.
data = os.urandom(1 << 20) * 8
sums = {}


def sink(name, sock):
    h = hashlib.sha256()
    while True:
        part = sock.recv(1 << 17)
        if not part:
            break
        h.update(part)
    sums[name] = h.hexdigest() == hashlib.sha256(data).hexdigest()


def source(sock):
    sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)


threads = [threading.Thread(target=f, args=a) for f, a in
           ((sink, ("c", c)), (sink, ("s", s)), (source, (c,)), (source, (s,)))]
for t in threads:
    t.start()
for t in threads:
    t.join()
say(sorted(sums.items()))
say(s.recv(1), c.recv(1), failed(lambda: s.send(b"x", socket.MSG_NOSIGNAL)))
s.close()
c.close()

# Half close.
c, s = pair()
c.sendall(b"question")
c.shutdown(socket.SHUT_WR)
say(s.recv(100), s.recv(100))
s.sendall(b"answer")
s.close()
say(c.recv(100), c.recv(100))
c.close()

# Refused; not connected; already connected.
l2 = listener()
name = l2.getsockname()
l2.close()
x = socket.socket()
say(failed(x.connect, name))
x.close()
x = socket.socket()
say(failed(x.recv, 1), failed(lambda: x.send(b"x", socket.MSG_NOSIGNAL)))
x.close()
c, s = pair()
say(failed(c.connect, c.getpeername()), failed(l.getpeername))

# Reset: unread data at close.
c.sendall(b"unread")
time.sleep(0.05)
s.close()
time.sleep(0.05)
say(failed(c.recv, 1), c.recv(1), failed(lambda: c.send(b"x", socket.MSG_NOSIGNAL)))
c.close()

# Options.
c, s = pair()
for level, name, value in ((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
                           (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 33), (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 7),
                           (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3), (socket.SOL_SOCKET, socket.SO_RCVBUF, 70000),
                           (socket.IPPROTO_TCP, socket.TCP_CORK, 1)):
    c.setsockopt(level, name, value)
    say(name, c.getsockopt(level, name))
c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
say(c.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))
c.sendall(b"corked")
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
say(s.recv(100))
c.close()
time.sleep(0.05)
say(failed(s.recv, 1))

# Time-outs.
c, s = pair()
c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 80000))
t = time.monotonic()
say(failed(c.recv, 1), 0.06 < time.monotonic() - t < 0.5)
l.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50000))
say(failed(l.accept))
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 50000))
n = 0
while True:
    try:
        n += s.send(b"x" * 100000)
    except OSError as e:
        say(errno.errorcode[e.errno], n > 100000)
        break
