"""An echo server of one thread that computes 20 ms for each message: busy_echo.py PORT. Prints `ready`."""
import socket
import sys
import time

listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("0.0.0.0", int(sys.argv[1])))
listener.listen()
print("ready", flush=True)
while True:
    peer, _ = listener.accept()
    with peer:
        while data := peer.recv(65536):
            end = time.thread_time() + 0.02
            while time.thread_time() < end:
                pass
            peer.sendall(data)
