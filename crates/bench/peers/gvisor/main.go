// gVisor's netstack as a peer of the experiments `stream` and `rr`: `scoutline-peer-gvisor DEVICE ADDRESS SERVICE [spin]`,
// where a service is `tcp:PORT` or `udp:PORT` (sends back what it gets) or `iperf3:PORT`. It prints `ready` and serves
// until it is stopped.
//
//	veth ══ packet socket (link.go) ── netstack ── socket.go ── service (echo.go, iperf3.go)
//
// It gets what helps the others too: super-segments both ways, TCP's checksums left to the device, cubic, buffers of
// 1 MiB. Each connection has a goroutine.
package main

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

const (
	usage = "usage: scoutline-peer-gvisor DEVICE ADDRESS tcp:PORT|udp:PORT|iperf3:PORT [spin]"
	// Of the network that a server host is on.
	prefixLen = 24
	// Of each socket, each way.
	bufferSize = 1 << 20
	nic        = tcpip.NICID(1)
)

func main() {
	// On one core Go would run one goroutine at a time, and what a packet wakes would wait until the runtime has taken the
	// place of the one that is back in its poll: a request took 0.24 ms instead of 0.1 (GOMAXPROCS=1 shows it).
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(runtime.NumCPU(), 2))
	}
	if err := run(os.Args[1:]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	complain(err)
	os.Exit(1)
}

func complain(err error) {
	fmt.Fprintln(os.Stderr, "scoutline-peer-gvisor:", err)
}

func run(words []string) error {
	// Netstack cannot spin: its goroutines sleep in a poll of the socket and on each other. So the word changes nothing.
	if len(words) == 4 && words[3] == "spin" {
		words = words[:3]
	}
	if len(words) != 3 {
		return fmt.Errorf("%s", usage)
	}
	address := net.ParseIP(words[1]).To4()
	if address == nil {
		return fmt.Errorf("not an IPv4 address: %s; %s", words[1], usage)
	}
	kind, number, _ := strings.Cut(words[2], ":")
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil || port == 0 {
		return fmt.Errorf("not a service with a port: %s; %s", words[2], usage)
	}
	serve := map[string]func(*stack.Stack, tcpip.FullAddress) error{
		"tcp": echoTCP, "udp": echoUDP, "iperf3": serveIperf3,
	}[kind]
	if serve == nil {
		return fmt.Errorf("there is no service `%s`; there are: tcp, udp, iperf3", kind)
	}
	link, err := openLink(words[0])
	if err != nil {
		return fmt.Errorf("cannot use %s: %w", words[0], err)
	}
	netstack, err := newStack(link, tcpip.AddrFrom4Slice(address))
	if err != nil {
		return err
	}
	return serve(netstack, tcpip.FullAddress{NIC: nic, Port: uint16(port)})
}

// ready tells who has started us that they may connect.
func ready() {
	fmt.Println("ready")
}

func newStack(link stack.LinkEndpoint, address tcpip.Address) (*stack.Stack, error) {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	// Nothing grows: the others' buffers are fixed, too.
	tuning := tcpip.TCPModerateReceiveBufferOption(false)
	sack := tcpip.TCPSACKEnabled(true)
	cubic := tcpip.CongestionControlOption("cubic")
	send := tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: bufferSize, Max: bufferSize}
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: bufferSize, Max: bufferSize}
	for _, option := range []tcpip.SettableTransportProtocolOption{&tuning, &sack, &cubic, &send, &receive} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return nil, fmt.Errorf("netstack refuses %T: %s", option, err)
		}
	}
	// Those of UDP.
	sizes := []any{
		tcpip.SendBufferSizeOption{Min: udp.MinBufferSize, Default: bufferSize, Max: bufferSize},
		tcpip.ReceiveBufferSizeOption{Min: udp.MinBufferSize, Default: bufferSize, Max: bufferSize},
	}
	for _, option := range sizes {
		if err := s.SetOption(option); err != nil {
			return nil, fmt.Errorf("netstack refuses %T: %s", option, err)
		}
	}
	if err := s.CreateNIC(nic, link); err != nil {
		return nil, fmt.Errorf("netstack refuses the device: %s", err)
	}
	whole := tcpip.AddressWithPrefix{Address: address, PrefixLen: prefixLen}
	protocolAddress := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: whole}
	if err := s.AddProtocolAddress(nic, protocolAddress, stack.AddressProperties{}); err != nil {
		return nil, fmt.Errorf("netstack refuses the address %s: %s", address, err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: whole.Subnet(), NIC: nic}})
	return s, nil
}
