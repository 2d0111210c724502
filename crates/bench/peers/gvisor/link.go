package main

import (
	"errors"
	"fmt"
	"net"
	"runtime"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	// The same at each start, so that what the client host knows of it stays true.
	mac = tcpip.LinkAddress("\x02\x00\x00\x00\x00\x01")
	// In the order of the network.
	everyProtocol = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	// Of a packet, and what a veth takes whole.
	longest = 1 << 16
	// For what comes while the program is at work.
	socketBuffer = 8 << 20
)

// openLink makes the device: a packet socket on an interface, a virtio-net header in front of each frame, as runsc does
// for a container.
func openLink(device string) (stack.LinkEndpoint, error) {
	found, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("%w; `ip link` lists what there is", err)
	}
	if found.Flags&net.FlagUp == 0 {
		return nil, fmt.Errorf("it is down; `ip link set %s up` first", device)
	}
	// Protocol 0 until it is bound, lest it gets what comes to other interfaces.
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EPERM) {
		return nil, errors.New("packet sockets need root or CAP_NET_RAW")
	} else if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	for _, option := range [][3]int{
		{unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1},
		{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer},
		{unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer},
	} {
		if err := unix.SetsockoptInt(socket, option[0], option[1], option[2]); err != nil {
			return nil, fmt.Errorf("option %d of the packet socket: %w (needs root or CAP_NET_ADMIN)", option[1], err)
		}
	}
	if err := unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: everyProtocol, Ifindex: found.Index}); err != nil {
		return nil, fmt.Errorf("bind: %w", err)
	}
	return fdbased.New(&fdbased.Options{
		FDs:            []int{socket},
		MTU:            uint32(found.MTU),
		EthernetHeader: true,
		Address:        mac,
		// As runsc does. The ring of PacketMMap has 32 frames, and loses what is more.
		PacketDispatchMode: fdbased.RecvMMsg,
		// On one core who has received delivers, too, as is netstack's way there.
		ProcessorsPerChannel: runtime.NumCPU(),
		// With it each segment of a connection leaves its checksum to the device, whether it is cut there or not.
		GSOMaxSize: longest,
		GRO:        true,
		// A veth hands over checksums that nobody has computed.
		RXChecksumOffload: true,
		// Not the other way: fdbased has no virtio-net header for what is of no connection yet, so that the answer to a
		// SYN would leave without a checksum.
		TXChecksumOffload: false,
		// Its error is another one than the kernel's.
		ClosedFunc: func(tcpip.Error) {
			fail(fmt.Errorf("nothing more comes from %s: it was removed or set down; set it up and start again", device))
		},
	})
}
