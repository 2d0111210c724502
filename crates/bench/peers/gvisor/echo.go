package main

import (
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// No datagram is longer.
const room = 1 << 16

// echoTCP sends back what comes, as `scoutline load echo` does. Nagle's algorithm is off: netstack's default.
func echoTCP(s *stack.Stack, address tcpip.FullAddress) error {
	listener, err := listen(s, address)
	if err != nil {
		return err
	}
	ready()
	for {
		connection, err := listener.accept()
		if err != nil {
			return err
		}
		go func() {
			defer connection.Close()
			buffer := make([]byte, room)
			for {
				count, err := connection.Read(buffer)
				if err != nil {
					return
				}
				if _, err := connection.Write(buffer[:count]); err != nil {
					return
				}
			}
		}()
	}
}

// echoUDP does so with datagrams.
func echoUDP(s *stack.Stack, address tcpip.FullAddress) error {
	socket, err := bind(s, udp.ProtocolNumber, address)
	if err != nil {
		return err
	}
	ready()
	buffer := make([]byte, room)
	for {
		count, from, err := socket.read(buffer, tcpip.ReadOptions{NeedRemoteAddr: true})
		if err != nil {
			complain(err)
			continue
		}
		// What cannot be sent is lost, as on a wire.
		_, _ = socket.write(buffer[:count], tcpip.WriteOptions{To: &from})
	}
}
