"""sendfile, splice, readv and writev, sendmsg and recvmsg."""
from common import *
import tempfile, hashlib

f = tempfile.TemporaryFile()
data = os.urandom(3 << 20)
f.write(data)
f.flush()
c, s = pair()


def collect(sock, n):
    out = b""
    while len(out) < n:
        part = sock.recv(1 << 20)
        if not part:
            break
        out += part
    return out


got = []
t = threading.Thread(target=lambda: got.append(collect(c, len(data) - 12345)))
t.start()
n = 12345
while n < len(data):
    n += os.sendfile(s.fileno(), f.fileno(), n, len(data))
t.join()
say(n == len(data), got[0] == data[12345:])
say(os.sendfile(s.fileno(), f.fileno(), len(data), 10))
f.seek(100)
say(os.sendfile(s.fileno(), f.fileno(), None, 50), f.tell(), collect(c, 50) == data[100:150])
say(failed(os.sendfile, f.fileno(), s.fileno(), None, 10) in ("EINVAL",))
s.setblocking(False)
n = 0
try:
    while True:
        k = os.sendfile(s.fileno(), f.fileno(), 0, 1 << 20)
        n += k
        if k == 0:
            break
except BlockingIOError:
    say("would block", n > 0)
s.setblocking(True)
collect(c, n)

say(os.writev(s.fileno(), [b"abc", b"", b"defg", b"h"]))
a, b = bytearray(3), bytearray(100)
say(os.readv(c.fileno(), [a, b]), bytes(a), bytes(b[:5]))
say(s.sendmsg([b"one", b"two"]), c.recvmsg(100)[:3:2], failed(os.pread, s.fileno(), 1, 0))
s.sendall(b"into")
b = bytearray(100)
say(c.recv_into(b), bytes(b[:4]))

r, w = os.pipe()
os.write(w, b"spliced")
say(os.splice(r, s.fileno(), 100), c.recv(100))
s.sendall(b"back")
time.sleep(0.05)
say(os.splice(c.fileno(), w, 100), os.read(r, 100))
import fcntl, termios, array
s.sendall(b"12345")
time.sleep(0.05)
buf = array.array("i", [0])
fcntl.ioctl(c, termios.FIONREAD, buf)
say(buf[0])
