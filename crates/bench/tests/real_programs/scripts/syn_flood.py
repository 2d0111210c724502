# A connection that stands, and new ones, while SYNs from forged addresses come as fast as can be: of a client that is
# known, and of strangers, each from an address of its own.
# Arguments: address, port, addresses of strangers joined by commas, the command that floods. Prints what it saw as JSON.
import json, socket, subprocess, sys, threading, time

address, port, strangers, flood = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4:]
KNOWN_CONNECTS = 50
TIMESTAMPS, SACK, WINDOW_SCALE = 1, 2, 4

def connect(source=""):
    began = time.monotonic()
    s = socket.create_connection((address, port), timeout=60, source_address=(source, 0))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s, time.monotonic() - began

def ask(s):
    s.sendall(b"GET /file HTTP/1.1\r\nHost: x\r\n\r\n")
    text = b""
    while b"\r\n\r\n" not in text:
        part = s.recv(65536)
        assert part, "the server closed a connection that stood"
        text += part
    head, body = text.split(b"\r\n\r\n", 1)
    length = int([l for l in head.split(b"\r\n") if l.lower().startswith(b"content-length:")][0].split(b":")[1])
    while len(body) < length:
        part = s.recv(65536)
        assert part, "the server closed a connection that stood"
        body += part
    return body

def rate(s, seconds):
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        assert ask(s) == b"here\n"
        count += 1
    return count / seconds

def syns_lost(s):
    # tcpi_total_retrans: of a connection that has sent nothing yet these were its SYNs.
    return int.from_bytes(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[100:104], sys.byteorder)

def meet(source, seen):
    s, time_s = connect(source)
    lost = syns_lost(s)
    assert ask(s) == b"here\n"
    seen.append((round(time_s, 3), lost))
    s.close()

def options_of(s):
    info = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return info[5], info[6] >> 4

standing, _ = connect()
ask(standing)
alone = rate(standing, 1)
flooder = subprocess.Popen(flood, stdout=subprocess.PIPE)
assert flooder.stdout.readline() == b"sending\n"
# What else it says would fill the pipe in the end.
threading.Thread(target=flooder.stdout.read, daemon=True).start()
rate(standing, 1)  # until it is known for a flood
flooded = rate(standing, 3)
took, options = [], []
for _ in range(4):
    s, time_s = connect()
    assert ask(s) == b"here\n"
    took.append(round(time_s, 3))
    options.append(options_of(s))
    s.close()
def stranger_meets(stranger):
    try:
        meet(stranger, met)
    except Exception as error:
        failed.append(f"{stranger}: {error!r}")

known, met, failed = [], [], []
for _ in range(KNOWN_CONNECTS):
    meet("", known)
threads = [threading.Thread(target=stranger_meets, args=(stranger,)) for stranger in strangers]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert flooder.poll() is None, "the flood ended early"
flooder.terminate()
flooder.wait()
wanted = TIMESTAMPS | SACK | WINDOW_SCALE
assert all(flags & wanted == wanted and scale > 0 for flags, scale in options), f"options were lost: {options}"
print(json.dumps({"alone": alone, "flooded": flooded, "connect_s": took, "options": options,
                  "known": len(known), "known_at_once": sum(lost == 0 for _, lost in known),
                  "strangers": len(met), "failed": failed, "strangers_s": sorted(time_s for time_s, _ in met)}))
