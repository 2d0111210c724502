"""The peer of ip6.py, on the kernel: echoes streams and datagrams over both families."""
import select
import socket
import sys

OURS, OURS4, PEER, PEER4 = sys.argv[1:5]


def main():
    stream = socket.create_server(("::", 7001), family=socket.AF_INET6, dualstack_ipv6=True)
    datagram = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    datagram.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    datagram.bind(("::", 7002))
    print("ready", flush=True)
    open_streams = []
    while True:
        readable, _, _ = select.select([stream, datagram, *open_streams], [], [])
        for one in readable:
            if one is stream:
                open_streams.append(stream.accept()[0])
            elif one is datagram:
                data, sender = datagram.recvfrom(65536)
                if data == b"end":
                    return
                if data == b"connect":
                    # Both families to the same server.
                    for host in (OURS, OURS4):
                        with socket.create_connection((host, 7003), timeout=30) as client:
                            client.sendall(b"hello")
                            assert client.recv(100) == b"hello"
                    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as four:
                        four.settimeout(30)
                        four.sendto(b"four", (OURS4, 7004))
                        assert four.recv(100) == b"four"
                    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as six:
                        six.settimeout(30)
                        six.sendto(b"six", (OURS, 7004))
                        assert six.recv(100) == b"six"
                datagram.sendto(data, sender)
            else:
                data = one.recv(65536)
                if data:
                    one.sendall(data)
                else:
                    open_streams.remove(one)
                    one.close()


main()
