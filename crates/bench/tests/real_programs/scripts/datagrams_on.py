"""Takes datagrams on these ports of every address, for ever."""

import selectors
import socket
import sys

selector = selectors.DefaultSelector()
for port in sys.argv[1:]:
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("0.0.0.0", int(port)))
    selector.register(receiver, selectors.EVENT_READ)
print("ready", flush=True)
while True:
    for key, _ in selector.select():
        key.fileobj.recv(65536)
