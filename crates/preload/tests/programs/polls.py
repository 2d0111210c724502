"""poll and select."""
from common import *
import select, signal

c, s = pair()
names = {c.fileno(): "c", s.fileno(): "s"}
r, w = os.pipe()
names[r] = "r"


def poll(*entries, ms=0):
    time.sleep(0.02)
    p = select.poll()
    for fd, ev in entries:
        p.register(fd, ev)
    return sorted((names[f], e) for f, e in p.poll(ms))


ALL = select.POLLIN | select.POLLOUT | select.POLLRDHUP | select.POLLPRI
say(poll((s, ALL), (r, select.POLLIN)))
c.send(b"x")
say(poll((s, ALL), (r, ALL)), poll((s, select.POLLIN), ms=1000), poll((s, 0)))
os.write(w, b"p")
say(poll((s, ALL), (r, select.POLLIN), ms=1000))
say([len(x) for x in select.select([s, r], [s, c], [s], 1)])
s.recv(1)
os.read(r, 1)
say([len(x) for x in select.select([s, r], [], [s], 0.05)], [len(x) for x in select.select([s, r], [s], [s], 0)])
t = time.monotonic()
say(poll((s, select.POLLIN), (r, select.POLLIN), ms=80), 0.07 < time.monotonic() - t < 0.5)
for f in (lambda: c.send(b"x"), lambda: os.write(w, b"x")):
    threading.Timer(0.08, f).start()
    t = time.monotonic()
    say(poll((s, select.POLLIN), (r, select.POLLIN), ms=2000), time.monotonic() - t < 0.5)
    if f is not None:
        select.select([s], [], [], 0) [0] and s.recv(1)
os.read(r, 1)
threading.Timer(0.08, lambda: c.send(b"y")).start()
say([len(x) for x in select.select([s, r], [], [], 2)], s.recv(1))
c.shutdown(socket.SHUT_WR)
say(poll((s, ALL)))
s.shutdown(socket.SHUT_WR)
say(poll((s, ALL)))
x = socket.socket()
names[x.fileno()] = "x"
l = listener()
names[l.fileno()] = "l"
say(poll((l, select.POLLIN)))
y = socket.create_connection(l.getsockname())
say(poll((l, select.POLLIN)))
z, _ = l.accept()
say(poll((l, select.POLLIN)))
z.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
names[y.fileno()] = "y"
z.close()
poll((y, 0), ms=2000)  # until the reset has come
say(poll((y, ALL)), failed(y.recv, 1), poll((y, ALL)))

# A time-out of Python is poll plus a non-blocking call.
c, s = pair()
s.settimeout(0.1)
try:
    s.recv(1)
except TimeoutError:
    say("timed out")
l.settimeout(0.1)
try:
    l.accept()
except TimeoutError:
    say("timed out")
x = socket.socket()
x.settimeout(2)
x.connect(l.getsockname())
say("connected", x.getpeername() == l.getsockname())

# More is asked for at once than there is ever room for: set before it is connected.
l = listener()
x = socket.socket()
x.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 << 30)
x.connect(l.getsockname())
y, _ = l.accept()
y.send(b"x")
say("little", poll((x, select.POLLIN), ms=50))
y.setblocking(False)
# (Linux's own limit depends on the machine's tcp_rmem and on what it holds for other sockets.)
ours = "LD_PRELOAD" in os.environ
end = time.monotonic() + 3
while ours and time.monotonic() < end and not poll((x, select.POLLIN), ms=10):
    try:
        y.send(b"x" * 65536)
    except BlockingIOError:
        pass
say("full", not ours or len(poll((x, select.POLLIN), ms=50)) == 1)

# More than fit on the stack.
import resource
pairs = [pair() for _ in range(80)]
p = select.poll()
for a, b in pairs:
    p.register(a, select.POLLIN)
    p.register(b, select.POLLIN)
pairs[70][0].send(b"x")
time.sleep(0.03)
say([fd == pairs[70][1].fileno() for fd, _ in p.poll(1000)])

# A handler interrupts; its mask is let through by ppoll (signal.pthread_sigmask and select's retry are Python's).
got = []
signal.signal(signal.SIGALRM, lambda *a: got.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.05)
t = time.monotonic()
say(poll((c, select.POLLIN), ms=150), got, 0.14 < time.monotonic() - t < 0.6)

# A hang-up that no set shows ends nothing.
c, s = pair()
r, w = os.pipe()
os.close(w)


def waited(*sets):
    t = time.monotonic()
    return [len(x) for x in select.select(*sets, 0.1)], time.monotonic() - t >= 0.09


say(waited([s], [], [r]), waited([s, r], [], [r]))
threading.Timer(0.08, lambda: c.send(b"y")).start()
say([len(x) for x in select.select([s], [], [r], 2)])
