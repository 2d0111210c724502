"""Takes datagrams for one port and leaves those for another. When told to, says how many it has taken."""
import socket, sys

ports = [int(word) for word in sys.argv[1:3]]
taken, left = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in ports]
taken.bind(("0.0.0.0", ports[0]))
left.bind(("0.0.0.0", ports[1]))
print("ready", flush=True)
count = 0
while taken.recv(2048) != b"end":
    count += 1
print(f"taken {count}", flush=True)
