"""epoll: level, edge, one-shot, modified, nested, mixed with the kernel's, several sets, dup, fork, errors."""
from common import *
import select

IN, OUT, ET, ONCE, RDHUP, HUP, ERR = (select.EPOLLIN, select.EPOLLOUT, select.EPOLLET, select.EPOLLONESHOT,
                                      select.EPOLLRDHUP, select.EPOLLHUP, select.EPOLLERR)


def wait(ep, timeout=0.3, n=64):
    time.sleep(0.03)  # what is under way arrives
    return sorted((names.get(fd, "?"), ev) for fd, ev in ep.poll(timeout, n))


c, s = pair()
names = {c.fileno(): "c", s.fileno(): "s"}
ep = select.epoll()
say("nothing", wait(ep, 0))
ep.register(s, IN)
say("idle", wait(ep, 0.05))
c.send(b"1")
say("level", wait(ep), wait(ep))
say(s.recv(10), wait(ep, 0))
ep.modify(s, IN | ET)
c.send(b"2")
say("edge", wait(ep), wait(ep, 0.05))
c.send(b"3")
say("edge again", wait(ep), wait(ep, 0.05))
ep.modify(s, IN | ET)
say("modified", wait(ep), wait(ep, 0.05))
s.recv(10)
ep.modify(s, IN | ONCE)
c.send(b"4")
say("once", wait(ep), wait(ep, 0.05))
ep.modify(s, IN | ONCE)
say("once more", wait(ep), wait(ep, 0.05))
s.recv(10)
say("errors", failed(ep.register, s, IN), failed(ep.modify, c, IN), failed(ep.unregister, c))
ep.unregister(s)
say(failed(ep.unregister, s))
ep.register(s, IN | OUT | RDHUP)
say("out", wait(ep))
c.shutdown(socket.SHUT_WR)
say("half", wait(ep))
s.shutdown(socket.SHUT_WR)
say("both", wait(ep))
ep.close()

# A full ring, and room again, edge-triggered.
c, s = pair()
c.setblocking(False)
names = {c.fileno(): "c", s.fileno(): "s"}
ep = select.epoll()
ep.register(c, OUT | ET)
say("room", wait(ep), wait(ep, 0.05))


def fill():
    n = 0
    idle = 0
    while idle < 3:
        try:
            n += c.send(b"x" * 65536)
            idle = 0
        except BlockingIOError:
            idle += 1
            time.sleep(0.02)
    return n


n = fill()
ep.poll(0)
say("full", wait(ep, 0.05), n > 65536)
got = 0
while got < n:
    got += len(s.recv(1 << 20))
say("room again", wait(ep))
ep.close()

# Many, mixed with a pipe, a timer in poll's time, an eventfd by a thread.
ep = select.epoll()
r, w = os.pipe()
pairs = [pair() for _ in range(20)]
names = {r: "pipe"}
for i, (c, s) in enumerate(pairs):
    names[s.fileno()] = f"s{i:02}"
    ep.register(s, IN)
ep.register(r, IN)
say("mixed idle", wait(ep, 0.02))
os.write(w, b"x")
say("pipe", wait(ep))
for i in (3, 7, 11):
    pairs[i][0].send(b"y")
say("both kinds", wait(ep))
seen = set()
for _ in range(60):
    for name, _ in wait.__wrapped__(ep) if hasattr(wait, "__wrapped__") else [(names[f], e) for f, e in ep.poll(0.2, 1)]:
        seen.add(name)
say("fair", sorted(seen))
os.read(r, 1)
for i in (3, 7, 11):
    pairs[i][1].recv(1)
threading.Timer(0.1, lambda: pairs[5][0].send(b"z")).start()
t = time.monotonic()
say("woken", [(names[f], e) for f, e in ep.poll(2)], time.monotonic() - t < 0.5)
pairs[5][1].recv(1)
threading.Timer(0.1, lambda: os.write(w, b"z")).start()
t = time.monotonic()
say("woken by pipe", [(names[f], e) for f, e in ep.poll(2)], time.monotonic() - t < 0.5)
os.read(r, 1)

# Added by another thread while the first one sleeps, in a set without and with our sockets.
c, s = pair()
names[s.fileno()] = "added"
s.setblocking(False)
c.send(b"ready")
time.sleep(0.05)
threading.Timer(0.1, lambda: ep.register(s, IN)).start()
say("added ready", [(names[f], e) for f, e in ep.poll(2)])
bare = select.epoll()
bare.register(r, IN)
threading.Timer(0.1, lambda: bare.register(s, IN)).start()
say("added to a kernel set", [(names[f], e) for f, e in bare.poll(2)])
say("two sets", [(names[f], e) for f, e in ep.poll(0.2)], s.recv(10), wait(ep, 0), wait(bare, 0))

# Nested, in epoll, poll and select.
outer = select.epoll()
outer.register(bare.fileno(), IN)
names[bare.fileno()] = "inner"
say("nested idle", wait(outer, 0.05))
c.send(b"n")
say("nested", wait(outer), wait(outer))
p = select.poll()
p.register(bare.fileno(), select.POLLIN)
say("poll of epoll", [(names[f], e) for f, e in p.poll(300)], select.select([bare.fileno()], [], [], 0.3)[0] == [bare.fileno()])
s.recv(10)
say("nested idle", wait(outer, 0.05), p.poll(20))
threading.Timer(0.1, lambda: c.send(b"m")).start()
say("nested woken", [(names[f], e) for f, e in outer.poll(2)])
s.recv(10)
threading.Timer(0.1, lambda: c.send(b"m")).start()
say("poll of epoll woken", [(names[f], e) for f, e in p.poll(2000)])
s.recv(10)

# Closing removes; a duplicate keeps.
d = os.dup(s.fileno())
fd = s.fileno()
s.close()
c.send(b"dup")
say("dup keeps", [e for f, e in bare.poll(0.3)], os.read(d, 10))
os.close(d)
c.close()
say("gone", bare.poll(0.05))

# Registered before it connects, and before it listens.
l = socket.socket()
l.setblocking(False)
x = socket.socket()
x.setblocking(False)
ep2 = select.epoll()
names = {l.fileno(): "l", x.fileno(): "x"}
ep2.register(l, IN | ET)
l.bind((ADDRESS, 0))
l.listen()
ep2.register(x, IN | OUT | ET)
ep2.poll(0)
say(failed(x.connect, l.getsockname()))
say("early", wait(ep2))
say(x.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), failed(x.connect, l.getsockname()) in ("no error: None", "EISCONN"))
y, _ = l.accept()
say(failed(l.accept))
y.send(b"hi")
say("then", wait(ep2), x.recv(10))

# A failed attempt.
dead = listener()
name = dead.getsockname()
dead.close()
z = socket.socket()
z.setblocking(False)
names[z.fileno()] = "z"
try:
    z.connect(name)
except OSError as e:
    say(errno.errorcode[e.errno] in ("EINPROGRESS", "ECONNREFUSED"))
ep2.register(z, OUT)
say("refused", wait(ep2))
say(errno.errorcode[z.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)])

# Several threads in one epoll_wait; each event once with ONESHOT.
ep3 = select.epoll()
pairs = [pair() for _ in range(8)]
for c, s in pairs:
    ep3.register(s, IN | ONCE)
hits, lock, stop = {}, threading.Lock(), []


def worker():
    while not stop:
        for fd, ev in ep3.poll(0.1, 1):
            with lock:
                hits[fd] = hits.get(fd, 0) + 1


threads = [threading.Thread(target=worker) for _ in range(4)]
for t in threads:
    t.start()
for c, s in pairs:
    c.send(b"x")
time.sleep(0.3)
stop.append(1)
for t in threads:
    t.join()
say("threads", len(hits), set(hits.values()))

# Several threads asleep, each takes one event and does not come back: one wake-up for two registrations of one
# socket, for several sockets, and for several that are armed anew.
def sleepers(ep, count, cause):
    took = []
    waiting = [threading.Thread(target=lambda: took.append(len(ep.poll(3, 1)))) for _ in range(count)]
    for t in waiting:
        t.start()
    time.sleep(0.05)
    start = time.monotonic()
    cause()
    for t in waiting:
        t.join()
    return took == [1] * count and time.monotonic() - start < 2


def arm(ep, fds):
    for fd in fds:
        ep.modify(fd, IN | ONCE)


c, s = pair()
twin = os.dup(s.fileno())
ep5 = select.epoll()
ep5.register(s, 0)
ep5.register(twin, 0)
good = []
for _ in range(10):
    arm(ep5, (s, twin))
    good.append(sleepers(ep5, 2, lambda: c.send(b"x")))
    s.recv(10)
    c.send(b"x")
    time.sleep(0.02)
    good.append(sleepers(ep5, 2, lambda: arm(ep5, (s, twin))))
    s.recv(10)
say("one wake-up, two registrations", all(good))
ep5.close()
ep5 = select.epoll()
pairs = [pair() for _ in range(4)]
for c, s in pairs:
    ep5.register(s, IN | ET)
say("one event each", all(sleepers(ep5, 4, lambda: [c.send(b"x") for c, s in pairs]) for _ in range(10)))
c, s = pair()
bare = select.epoll()
bare.register(rr0 := os.pipe()[0], IN)
c.send(b"x")
time.sleep(0.05)
twin = os.dup(s.fileno())


def register():
    bare.register(s, IN | ONCE)
    bare.register(twin, IN | ONCE)


say("added to a kernel set, two asleep", sleepers(bare, 2, register))

# Inherited over fork: the child waits too.
c, s = pair()
ep4 = select.epoll()
ep4.register(s, IN)
rr, ww = os.pipe()
if os.fork() == 0:
    os.write(ww, repr([e for f, e in ep4.poll(2)]).encode())
    os._exit(0)
time.sleep(0.1)
c.send(b"x")
say("child", os.read(rr, 100), [e for f, e in ep4.poll(1)])
os.wait()
