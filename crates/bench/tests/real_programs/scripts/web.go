// An HTTP server that also echoes datagrams, and a client for both, on Go's own network code.
//
//	web serve ADDRESS
//	web ask ADDRESS        prints "all right" if everything came as it should
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

const size = 3_000_001

func fail(what string, err error) {
	if err != nil {
		fmt.Println("failed:", what, err)
		os.Exit(1)
	}
}

// Bytes without a short period: what is lost, doubled or misplaced shows.
func pattern(n int) []byte {
	data := make([]byte, n)
	state := uint32(1)
	for i := range data {
		state = state*1664525 + 1013904223
		data[i] = byte(state >> 24)
	}
	return data
}

func serve(address string) {
	http.HandleFunc("/bytes", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		w.Write(pattern(n))
	})
	http.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err == nil {
			w.Write(data)
		}
	})
	http.HandleFunc("/from", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.RemoteAddr)
	})
	packets, err := net.ListenPacket("udp", address)
	fail("udp", err)
	go func() {
		buffer := make([]byte, 65536)
		for {
			n, from, err := packets.ReadFrom(buffer)
			fail("receive", err)
			packets.WriteTo(buffer[:n], from)
		}
	}()
	listener, err := net.Listen("tcp", address)
	fail("listen", err)
	fmt.Println("ready", listener.Addr())
	fail("serve", http.Serve(listener, nil))
}

func get(client *http.Client, address string) {
	answer, err := client.Get("http://" + address + "/bytes?n=" + strconv.Itoa(size))
	fail("get", err)
	data, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	fail("body", err)
	if !bytes.Equal(data, pattern(size)) {
		fail("bytes", fmt.Errorf("%d of %d or wrong", len(data), size))
	}
}

func echo(client *http.Client, address string) {
	sent := pattern(size)
	answer, err := client.Post("http://"+address+"/echo", "text/plain", bytes.NewReader(sent))
	fail("post", err)
	data, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	fail("body", err)
	if !bytes.Equal(data, sent) {
		fail("echo", fmt.Errorf("%d of %d or wrong", len(data), size))
	}
}

func datagrams(address string) {
	socket, err := net.Dial("udp", address)
	fail("dial udp", err)
	defer socket.Close()
	buffer := make([]byte, 65536)
	for _, n := range []int{1, 100, 1400, 9000} {
		socket.SetDeadline(time.Now().Add(10 * time.Second))
		_, err = socket.Write(pattern(n))
		fail("write", err)
		got, err := socket.Read(buffer)
		fail("read", err)
		if !bytes.Equal(buffer[:got], pattern(n)) {
			fail("datagram", fmt.Errorf("%d of %d or wrong", got, n))
		}
	}
}

func ask(address string) {
	var all sync.WaitGroup
	for range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			client := &http.Client{Transport: &http.Transport{}, Timeout: 30 * time.Second}
			for range 2 {
				get(client, address)
				echo(client, address)
			}
		}()
	}
	all.Wait()
	datagrams(address)
	host, _, _ := net.SplitHostPort(address)
	_, err := net.DialTimeout("tcp", net.JoinHostPort(host, "9"), 10*time.Second)
	if err == nil {
		fail("a port where nobody listens", fmt.Errorf("connected"))
	}
	fmt.Println("refused:", err)
	fmt.Println("all right")
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "serve" {
		serve(os.Args[2])
	} else if len(os.Args) == 3 && os.Args[1] == "ask" {
		ask(os.Args[2])
	} else {
		fmt.Println("web serve|ask ADDRESS")
		os.Exit(2)
	}
}
