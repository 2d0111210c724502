"""An echo server of one thread that blocks in each call: blocking_echo.py PORT. Prints `ready`."""
import socket
import sys

listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("0.0.0.0", int(sys.argv[1])))
listener.listen()
print("ready", flush=True)
while True:
    peer, _ = listener.accept()
    with peer:
        while data := peer.recv(65536):
            peer.sendall(data)
