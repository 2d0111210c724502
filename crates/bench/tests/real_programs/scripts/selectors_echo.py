"""An echo server of one thread over one selector: selectors_echo.py poll|select PORT... Prints `ready`."""
import selectors
import socket
import sys

selector = selectors.PollSelector() if sys.argv[1] == "poll" else selectors.SelectSelector()
waiting = {}


def close(peer):
    selector.unregister(peer)
    del waiting[peer]
    peer.close()


def serve(peer, events):
    try:
        if events & selectors.EVENT_READ:
            data = peer.recv(65536)
            if not data and not waiting[peer]:
                return close(peer)
            waiting[peer] += data
        waiting[peer] = waiting[peer][peer.send(waiting[peer]):] if waiting[peer] else b""
    except BlockingIOError:
        pass
    except ConnectionError:
        return close(peer)
    wanted = selectors.EVENT_WRITE if waiting[peer] else selectors.EVENT_READ
    selector.modify(peer, wanted)


for port in sys.argv[2:]:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", int(port)))
    listener.listen(1024)
    selector.register(listener, selectors.EVENT_READ, "listener")
print("ready", flush=True)
while True:
    for key, events in selector.select():
        if key.data == "listener":
            peer, _ = key.fileobj.accept()
            peer.setblocking(False)
            waiting[peer] = b""
            selector.register(peer, selectors.EVENT_READ)
        else:
            serve(key.fileobj, events)
