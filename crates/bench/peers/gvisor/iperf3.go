package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// What an iperf3 client asks of its server, for bulk over TCP one way. The messages are drawn in the smoltcp peer's
// iperf3.rs, which serves and leaves out the same.
const (
	testStart       = 1
	testRunning     = 2
	testEnd         = 4
	paramExchange   = 9
	createStreams   = 10
	exchangeResults = 13
	displayResults  = 14

	// 36 characters and a 0.
	cookieLen = 37
	// Of one call, as iperf3 reads and writes over TCP.
	blockSize = 128 << 10
	// As in the smoltcp peer.
	mostStreams = 11
	// No message of a client is longer.
	longestMessage = 1 << 20
)

// A newcomer is a connection whose cookie has been read.
type newcomer struct {
	*socket
	cookie [cookieLen]byte
}

// What a client asks for.
type parameters struct {
	streams int
	// Whether the server sends.
	reverse bool
	// Not counted at the beginning.
	omit time.Duration
}

// A stream, with the bytes counted of it.
type stream struct {
	*socket
	bytes atomic.Int64
}

// serveIperf3 serves one client after another.
func serveIperf3(s *stack.Stack, address tcpip.FullAddress) error {
	listener, err := listen(s, address)
	if err != nil {
		return err
	}
	ready()
	var next *newcomer
	for {
		client := next
		if client == nil {
			if client, err = greet(listener); err != nil {
				return err
			}
		}
		if next, err = serveClient(listener, client); err != nil {
			complain(fmt.Errorf("iperf3: %w", err))
		}
	}
}

// greet waits for a connection and its cookie.
func greet(listener *socket) (*newcomer, error) {
	for {
		connection, err := listener.accept()
		if err != nil {
			return nil, err
		}
		client := newcomer{socket: connection}
		if _, err := io.ReadFull(connection, client.cookie[:]); err == nil {
			return &client, nil
		}
		connection.Abort()
	}
}

// serveClient does a client's test. Who comes with another cookie meanwhile is the next client: this one has gone.
func serveClient(listener *socket, control *newcomer) (*newcomer, error) {
	// What a stream still holds at the end is no longer wanted.
	defer control.Abort()
	if _, err := control.Write([]byte{paramExchange}); err != nil {
		return nil, err
	}
	message, err := readMessage(control)
	if err != nil {
		return nil, err
	}
	asked, err := parse(message)
	if err != nil {
		return nil, err
	}
	if _, err := control.Write([]byte{createStreams}); err != nil {
		return nil, err
	}
	streams := make([]*stream, asked.streams)
	for index := range streams {
		connection, err := greet(listener)
		if err != nil {
			return nil, err
		}
		if connection.cookie != control.cookie {
			return connection, errors.New("the client has gone before its streams were there")
		}
		defer connection.Abort()
		streams[index] = &stream{socket: connection.socket}
	}
	if _, err := control.Write([]byte{testStart, testRunning}); err != nil {
		return nil, err
	}

	countFrom := time.Now().Add(asked.omit)
	var over atomic.Bool
	for _, stream := range streams {
		go stream.transfer(asked.reverse, countFrom, &over)
	}
	var state [1]byte
	_, err = io.ReadFull(control, state[:])
	over.Store(true)
	if err != nil || state[0] != testEnd {
		// Interrupted: nobody waits for results.
		return nil, err
	}
	answer := results(streams, max(time.Since(countFrom), 0))

	if _, err := control.Write([]byte{exchangeResults}); err != nil {
		return nil, err
	}
	if _, err := readMessage(control); err != nil {
		return nil, err
	}
	answer = append(binary.BigEndian.AppendUint32(nil, uint32(len(answer))), answer...)
	if _, err := control.Write(append(answer, displayResults)); err != nil {
		return nil, err
	}
	// IPERF_DONE, or the end of the connection.
	_, _ = control.Read(state[:])
	return nil, nil
}

// transfer moves what goes, as iperf3 does: whole blocks, copied. A stream that is closed moves nothing; the client
// says what that means. Once the test is over the stream is closed: iperf3 that receives reads on, and sleeps until it
// has a whole block or the end, though the question for its results has come.
func (s *stream) transfer(reverse bool, countFrom time.Time, over *atomic.Bool) {
	defer s.Close()
	block := make([]byte, blockSize)
	move := s.Read
	if reverse {
		move = s.Write
	}
	for !over.Load() {
		count, err := move(block)
		if !over.Load() && !time.Now().Before(countFrom) {
			s.bytes.Add(int64(count))
		}
		if err != nil {
			return
		}
	}
}

// readMessage reads one with its length in front.
func readMessage(from io.Reader) ([]byte, error) {
	var prefix [4]byte
	if _, err := io.ReadFull(from, prefix[:]); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(prefix[:])
	if length > longestMessage {
		return nil, fmt.Errorf("a message of %d bytes; at most %d are taken", length, longestMessage)
	}
	message := make([]byte, length)
	_, err := io.ReadFull(from, message)
	return message, err
}

func parse(message []byte) (parameters, error) {
	// Some versions say true, some 1.
	var all struct {
		UDP, Reverse, Bidirectional any
		Parallel                    int
		Omit                        int64
	}
	if err := json.Unmarshal(message, &all); err != nil {
		return parameters{}, fmt.Errorf("parameters are no JSON: %w", err)
	}
	set := func(value any) bool { return value == true || value == 1.0 }
	if set(all.UDP) || set(all.Bidirectional) {
		return parameters{}, errors.New("only TCP one way is served; leave out -u and --bidir")
	}
	if all.Parallel > mostStreams {
		return parameters{}, fmt.Errorf("%d streams are too many; at most %d are served", all.Parallel, mostStreams)
	}
	return parameters{
		streams: max(all.Parallel, 1),
		reverse: set(all.Reverse),
		omit:    time.Duration(all.Omit) * time.Second,
	}, nil
}

func results(streams []*stream, counted time.Duration) []byte {
	type object = map[string]any
	list := make([]object, len(streams))
	for index, stream := range streams {
		// iperf3 numbers its streams 1, 3, 4, 5, …
		id := 1
		if index > 0 {
			id = index + 2
		}
		list[index] = object{
			"id": id, "bytes": stream.bytes.Load(), "retransmits": -1, "jitter": 0, "errors": 0, "packets": 0,
			"start_time": 0, "end_time": counted.Seconds(),
		}
	}
	text, err := json.Marshal(object{
		"cpu_util_total": 0, "cpu_util_user": 0, "cpu_util_system": 0, "sender_has_retransmits": 0, "streams": list,
	})
	if err != nil {
		panic(err) // numbers and words, all of them finite
	}
	return text
}
