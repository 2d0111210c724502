"""fork, dup, prefork accept, threads, what a child inherits and what its death frees."""
from common import *
import fcntl, signal

# dup: the connection ends with its last descriptor.
c, s = pair()
d = s.dup()
e = os.dup2(s.fileno(), 100)
f = fcntl.fcntl(s, fcntl.F_DUPFD, 200)
say(f >= 200, os.get_inheritable(e))
s.close()
d.sendall(b"through d")
say(c.recv(100))
os.write(e, b"through e")
say(c.recv(100))
os.close(e)
d.close()
c.setblocking(False)
say(failed(c.recv, 1))
c.setblocking(True)
os.write(f, b"last")
os.close(f)
say(c.recv(100), c.recv(100))

# dup2 over a socket closes it.
c, s = pair()
r, w = os.pipe()
os.dup2(r, s.fileno())
say(c.recv(10))
os.write(w, b"pipe now")
say(os.read(s.fileno(), 100))

# O_NONBLOCK belongs to all duplicates.
c, s = pair()
d = s.dup()
fcntl.fcntl(d, fcntl.F_SETFL, os.O_NONBLOCK | fcntl.fcntl(d, fcntl.F_GETFL))
say(fcntl.fcntl(s, fcntl.F_GETFL) & os.O_NONBLOCK != 0, failed(lambda: os.read(s.fileno(), 1)))

# A child inherits; both ends live until both close.
c, s = pair()
pid = os.fork()
if pid == 0:
    c.close()
    s.sendall(b"from child")
    os._exit(0)
s.close()
say(c.recv(100), c.recv(100))
os.waitpid(pid, 0)

# A program that ends without closing, by exit and by _exit: what it wrote arrives, and an orderly end.
for how in ("sys.exit", "os._exit"):
    c, s = pair()
    pid = os.fork()
    if pid == 0:
        c.close()
        s.sendall(b"z" * 100000)
        if how == "os._exit":
            os._exit(0)
        try:
            sys.exit(0)
        finally:
            pass
    s.close()
    os.waitpid(pid, 0)
    n = 0
    while part := c.recv(1 << 20):
        n += len(part)
    say(how, n)

# A killed child.
c, s = pair()
pid = os.fork()
if pid == 0:
    c.close()
    time.sleep(100)
s.close()
time.sleep(0.05)
c.setblocking(False)
say(failed(c.recv, 1))
c.setblocking(True)
os.kill(pid, signal.SIGKILL)
say(c.recv(100))
os.waitpid(pid, 0)

# Prefork: 20 children accept on one socket.
l = listener()
children = []
for i in range(20):
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                s, _ = l.accept()
                while True:
                    data = s.recv(1000)
                    if not data:
                        break
                    s.sendall(data.upper())
                s.close()
        finally:
            os._exit(1)
    children.append(pid)
done = []


def client(n):
    for i in range(10):
        c = socket.create_connection(l.getsockname())
        c.sendall(b"abc%d.%d" % (n, i))
        done.append(c.recv(100) == b"ABC%d.%d" % (n, i))
        c.close()


threads = [threading.Thread(target=client, args=(n,)) for n in range(10)]
for t in threads:
    t.start()
for t in threads:
    t.join()
say(len(done), all(done))
for pid in children[:10]:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
time.sleep(0.05)
done.clear()
client(1)
say(len(done), all(done))
for pid in children[10:]:
    os.kill(pid, signal.SIGKILL)
for pid in children[10:]:
    os.waitpid(pid, 0)
say(l.fileno() >= 0)

# Threads accept on one socket, and come and go.
served = []


def serve():
    s, _ = l.accept()
    served.append(s.recv(10))
    s.close()


for _ in range(3):
    threads = [threading.Thread(target=serve) for _ in range(10)]
    for t in threads:
        t.start()
    time.sleep(0.05)
    for i in range(10):
        c = socket.create_connection(l.getsockname())
        c.send(b"x")
        c.close()
    for t in threads:
        t.join()
say(len(served))

# A program that closes everything it does not know.
c, s = pair()
pid = os.fork()
if pid == 0:
    os.closerange(3, 5000)
    l2 = listener()
    c2 = socket.create_connection(l2.getsockname())
    s2, _ = l2.accept()
    c2.send(b"still works")
    os.write(1, s2.recv(100) + b"\n")
    os._exit(0)
os.waitpid(pid, 0)
c.send(b"x")
say(s.recv(1))

# exec'ed children of subprocess do not disturb.
import subprocess
say(subprocess.run(["/bin/echo", "hi"], capture_output=True).stdout)
