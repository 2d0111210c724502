"""names.py ECHO_ADDRESS PORT: looks names of example.test up by each function of the C library that Python has."""
import os, signal, socket, subprocess, sys, threading

ECHO, PORT = sys.argv[1], int(sys.argv[2])


def addresses(name, **more):
    return sorted({entry[4][0] for entry in socket.getaddrinfo(name, PORT, type=socket.SOCK_STREAM, **more)})


def look_up():
    assert addresses("www.example.test") == [ECHO], addresses("www.example.test")
    assert addresses("six.example.test", family=socket.AF_INET6) == ["2001:db8::53"]
    assert socket.gethostbyname("h5.example.test") == "10.2.0.5"
    assert socket.gethostbyaddr("10.2.0.7")[0] == "h7.example.test"
    assert socket.getnameinfo(("10.2.0.7", 80), 0)[0] == "h7.example.test"
    # More than a datagram holds: by TCP.
    _, _, many = socket.gethostbyname_ex("many.example.test")
    assert len(many) == 60, many
    try:
        socket.getaddrinfo("nobody.example.test", PORT)
        raise AssertionError("found nobody")
    except socket.gaierror as error:
        assert error.errno == socket.EAI_NONAME, error


def echo(name):
    with socket.socket() as connection:
        connection.settimeout(30)
        connection.connect((name, PORT))
        connection.sendall(b"hello")
        got = b""
        while len(got) < 5:
            got += connection.recv(5 - len(got))
        assert got == b"hello", got


failures = []


def in_thread(times):
    try:
        for _ in range(times):
            look_up()
    except BaseException as error:
        failures.append(repr(error))
        raise


look_up()
echo("www.example.test")
threads = [threading.Thread(target=in_thread, args=(10,)) for _ in range(6)]
# Handlers of signals make calls in the midst of it, and processes begin.
ticks = 0


def tick(*_):
    global ticks
    ticks += 1
    os.stat("/")


signal.signal(signal.SIGALRM, tick)
# Else a connect of the C library's may end with EINTR, and it gives the name up: on Linux's loopback no connect sleeps.
signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
for thread in threads:
    thread.start()
for _ in range(5):
    look_up()
    assert subprocess.run(["true"]).returncode == 0
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_REAL, 0)
        # By number: locks of getaddrinfo's are as another thread had them at the fork, on the kernel, too.
        echo(ECHO)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.execvp("getent", ["getent", "hosts", "h9.example.test"])
    assert os.waitpid(child, 0)[1] == 0
for thread in threads:
    thread.join()
signal.setitimer(signal.ITIMER_REAL, 0)
assert not failures, failures
assert ticks > 0
# From a child whose parent asks at the same time by a plain `getent`, another program.
said = subprocess.run(["getent", "hosts", "h9.example.test"], capture_output=True, text=True)
assert said.returncode == 0 and "10.2.0.9" in said.stdout, said
echo("www.example.test")
print("all found")
