"""Echo servers of several processes: prefork.py PORT... Each port has three, of different nice values, which go on living
when their sockets fail. Prints `child PID NICE` for each, then `ready`."""
import os
import signal
import socket
import sys


def serve(listener):
    while True:
        try:
            peer, _ = listener.accept()
            with peer:
                while data := peer.recv(65536):
                    peer.sendall(data)
        except ConnectionResetError:
            # Of the peer, or of the daemon; then accept says so again.
            try:
                listener.getsockname()
                listener.setblocking(True)
            except OSError:
                pass
            failures = getattr(serve, "failures", 0) + 1
            serve.failures = failures
            if failures > 100:
                break
        except OSError:
            break
    while True:
        signal.pause()


for number, port in enumerate(sys.argv[1:]):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", int(port)))
    listener.listen(64)
    for child in range(3):
        nice = number * 3 + child
        pid = os.fork()
        if pid == 0:
            os.nice(nice)
            serve(listener)
        print("child", pid, nice, flush=True)
print("ready", flush=True)
while True:
    signal.pause()
