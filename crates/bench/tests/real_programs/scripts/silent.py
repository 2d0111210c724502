"""silent.py ADDRESS PORT: takes datagrams and answers none; says so once it has been asked five times."""
import socket, sys

taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken.bind((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
asked = 0
while True:
    taken.recv(512)
    asked += 1
    if asked == 5:
        print("asked", flush=True)
