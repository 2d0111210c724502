package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// A socket is an endpoint of netstack on which one goroutine waits. It registers once; gonet, the adapter to Go's net,
// does so at each call that sleeps.
type socket struct {
	tcpip.Endpoint
	readable, writable <-chan struct{}
}

func newSocket(endpoint tcpip.Endpoint, queue *waiter.Queue) *socket {
	in, readable := waiter.NewChannelEntry(waiter.ReadableEvents)
	out, writable := waiter.NewChannelEntry(waiter.WritableEvents)
	queue.EventRegister(&in)
	queue.EventRegister(&out)
	return &socket{endpoint, readable, writable}
}

// bind makes a socket of a protocol at an address.
func bind(s *stack.Stack, protocol tcpip.TransportProtocolNumber, address tcpip.FullAddress) (*socket, error) {
	var queue waiter.Queue
	endpoint, err := s.NewEndpoint(protocol, ipv4.ProtocolNumber, &queue)
	if err != nil {
		return nil, fmt.Errorf("netstack has no socket: %s", err)
	}
	if err := endpoint.Bind(address); err != nil {
		return nil, fmt.Errorf("cannot bind to port %d: %s", address.Port, err)
	}
	return newSocket(endpoint, &queue), nil
}

// listen makes a socket that takes connections.
func listen(s *stack.Stack, address tcpip.FullAddress) (*socket, error) {
	listener, err := bind(s, tcp.ProtocolNumber, address)
	if err != nil {
		return nil, err
	}
	if err := listener.Listen(64); err != nil {
		return nil, fmt.Errorf("cannot listen at port %d: %s", address.Port, err)
	}
	return listener, nil
}

// accept waits for a connection.
func (s *socket) accept() (*socket, error) {
	for {
		endpoint, queue, err := s.Accept(nil)
		switch err.(type) {
		case nil:
			return newSocket(endpoint, queue), nil
		case *tcpip.ErrWouldBlock:
			<-s.readable
		default:
			return nil, fmt.Errorf("cannot accept: %s", err)
		}
	}
}

// Read is io.Reader's.
func (s *socket) Read(room []byte) (int, error) {
	count, _, err := s.read(room, tcpip.ReadOptions{})
	return count, err
}

func (s *socket) read(room []byte, options tcpip.ReadOptions) (int, tcpip.FullAddress, error) {
	for {
		writer := tcpip.SliceWriter(room)
		result, err := s.Endpoint.Read(&writer, options)
		switch err.(type) {
		case nil:
			return result.Count, result.RemoteAddr, nil
		case *tcpip.ErrWouldBlock:
			<-s.readable
		case *tcpip.ErrClosedForReceive:
			return 0, tcpip.FullAddress{}, io.EOF
		default:
			return 0, tcpip.FullAddress{}, errors.New(err.String())
		}
	}
}

// Write is io.Writer's: all of it, unless there is an error.
func (s *socket) Write(data []byte) (int, error) {
	return s.write(data, tcpip.WriteOptions{})
}

func (s *socket) write(data []byte, options tcpip.WriteOptions) (int, error) {
	rest := bytes.NewReader(data)
	written := 0
	for {
		// What the endpoint has no room for may have been read, too.
		rest.Reset(data[written:])
		count, err := s.Endpoint.Write(rest, options)
		written += int(count)
		switch err.(type) {
		case nil:
			if written == len(data) {
				return written, nil
			}
		case *tcpip.ErrWouldBlock:
			<-s.writable
		default:
			return written, errors.New(err.String())
		}
	}
}
