"""An echo server that serves each connection in a child: forking_echo.py PORT. Prints `ready`, and `child POLICY` with
the scheduling policy that each child begins with."""
import os
import signal
import socket
import sys

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("0.0.0.0", int(sys.argv[1])))
listener.listen()
print("ready", flush=True)
count = 0
while True:
    peer, _ = listener.accept()
    with peer:
        count += 1
        if os.fork() == 0:
            if count == 4:
                print("child", os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK, flush=True)
            while data := peer.recv(65536):
                peer.sendall(data)
            os._exit(0)
