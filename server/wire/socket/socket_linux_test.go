package socket_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/wire/socket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long is more than any step takes on a slow machine.
const long = 30 * time.Second

// pair returns both ends of a connection; the server's end is the listener's.
func pair(t *testing.T) (server, client net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = socket.Listener(l).Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Close()
		client.Close()
	})
	client.SetDeadline(time.Now().Add(long))
	return server, client
}

func TestWriteArrives(t *testing.T) {
	server, client := pair(t)
	for _, size := range []int{0, 1, 4096, 64 << 10, 64<<10 + 1, 1 << 20} {
		sent := bytes.Repeat([]byte{byte(size), 7}, size/2+1)[:size]
		done := make(chan error, 1)
		go func() {
			n, err := server.Write(sent)
			if n != size && err == nil {
				err = io.ErrShortWrite
			}
			done <- err
		}()
		got := make([]byte, size)
		if _, err := io.ReadFull(client, got); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if err := <-done; err != nil {
			t.Errorf("write of %d bytes: %v", size, err)
		}
		if !bytes.Equal(got, sent) {
			t.Errorf("%d bytes arrived changed", size)
		}
	}
}

// Writes from several goroutines must not be mixed, whichever way each of them took.
func TestConcurrentWritesStayWhole(t *testing.T) {
	server, client := pair(t)
	const writers, each, size = 8, 200, 3000
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			message := bytes.Repeat([]byte{byte('a' + w)}, size)
			for range each {
				if _, err := server.Write(message); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	got := make([]byte, size)
	for range writers * each {
		if _, err := io.ReadFull(client, got); err != nil {
			t.Fatal(err)
		}
		if bytes.Count(got, got[:1]) != size {
			t.Fatal("two messages are mixed")
		}
	}
	group.Wait()
}

// fill writes until the peer, who reads nothing, takes no more and the deadline has passed.
func fill(t *testing.T, c net.Conn) (written int, err error) {
	t.Helper()
	piece := bytes.Repeat([]byte("x"), 8<<10)
	for limit := time.Now().Add(long); time.Now().Before(limit); {
		c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := c.Write(piece)
		written += n
		if err != nil {
			return written, err
		}
	}
	t.Fatal("a peer that reads nothing took everything")
	return 0, nil
}

func TestSlowPeerHoldsWriterBackUntilTheDeadline(t *testing.T) {
	server, client := pair(t)
	written, err := fill(t, server)
	var timeout net.Error
	if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("got %v, want a timeout", err)
	}
	if err := server.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := server.Write([]byte("the end"))
		server.(interface{ CloseWrite() error }).CloseWrite()
		done <- err
	}()
	got, err := io.ReadAll(client)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("write after the peer has read: %v", err)
	}
	if len(got) != written+len("the end") || !bytes.HasSuffix(got, []byte("the end")) {
		t.Errorf("the peer got %d bytes, want the %d that were said to be written and the end", len(got), written)
	}
}

func TestCloseEndsAWriteThatWaits(t *testing.T) {
	server, _ := pair(t)
	if _, err := fill(t, server); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	server.SetWriteDeadline(time.Time{})
	done := make(chan error, 1)
	go func() {
		var err error
		for err == nil { // the kernel may find room for some more
			_, err = server.Write(make([]byte, 8<<10))
		}
		done <- err
	}()
	server.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want %v", err, net.ErrClosed)
	}
}

func TestWriteToAGonePeerFails(t *testing.T) {
	server, client := pair(t)
	client.(*net.TCPConn).SetLinger(0) // a reset
	client.Close()
	for limit := time.Now().Add(long); ; {
		_, err := server.Write([]byte("anybody?"))
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			return
		}
		if err != nil || time.Now().After(limit) {
			t.Fatalf("got %v, want a broken pipe or a reset", err)
		}
	}
}

func TestRead(t *testing.T) {
	server, client := pair(t)
	raw, err := server.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	read := func(b []byte, wait bool) (n int, err error) {
		server.SetReadDeadline(time.Now().Add(long))
		if failed := raw.Read(func(fd uintptr) bool {
			n, err = socket.Read(fd, b)
			return !wait || err != syscall.EAGAIN
		}); failed != nil {
			t.Fatal(failed)
		}
		return n, err
	}
	b := make([]byte, 4)
	if n, err := read(b, false); n != 0 || err != syscall.EAGAIN {
		t.Errorf("nothing sent: got %d, %v, want EAGAIN", n, err)
	}
	if _, err := client.Write([]byte("abcdef")); err != nil {
		t.Fatal(err)
	}
	if n, err := read(b, true); err != nil || string(b[:n]) != "abcd" {
		t.Errorf("got %q, %v, want abcd", b[:n], err)
	}
	if n, err := read(b, true); err != nil || string(b[:n]) != "ef" {
		t.Errorf("got %q, %v, want ef", b[:n], err)
	}
	client.Close()
	if n, err := read(b, true); n != 0 || err != nil {
		t.Errorf("after the end: got %d, %v, want none of both", n, err)
	}
	if _, err := socket.Read(^uintptr(0), b); err != syscall.EBADF {
		t.Errorf("a descriptor that is none: got %v, want %v", err, syscall.EBADF)
	}
}

// other is a listener of connections that are not TCP.
type other struct{ net.Listener }

func (other) Accept() (net.Conn, error) {
	c, peer := net.Pipe()
	peer.Close()
	return c, nil
}

func TestOtherConnectionsPass(t *testing.T) {
	c, err := socket.Listener(other{}).Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("got %v, want the pipe's end", err)
	}
}

func TestWriteBothArrivesInItsOrder(t *testing.T) {
	server, client := pair(t)
	sizes := []int{0, 1, 300, 64 << 10, 64<<10 + 1, 1 << 20}
	for _, first := range sizes {
		for _, second := range sizes {
			a, b := bytes.Repeat([]byte("a"), first), bytes.Repeat([]byte("b"), second)
			done := make(chan error, 1)
			go func() {
				n, err := socket.WriteBoth(server, a, b)
				if n != first+second && err == nil {
					err = io.ErrShortWrite
				}
				done <- err
			}()
			got := make([]byte, first+second)
			if _, err := io.ReadFull(client, got); err != nil {
				t.Fatalf("%d and %d bytes: %v", first, second, err)
			}
			if err := <-done; err != nil {
				t.Errorf("%d and %d bytes: %v", first, second, err)
			}
			if !bytes.Equal(got, append(a, b...)) {
				t.Errorf("%d and %d bytes arrived changed", first, second)
			}
		}
	}
}

func TestWriteBothSaysHowMuchWasWritten(t *testing.T) {
	server, client := pair(t)
	server.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	n, err := socket.WriteBoth(server, make([]byte, 100), make([]byte, 64<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a peer that reads nothing: %v", err)
	}
	server.Close()
	got, err := io.ReadAll(client)
	if err != nil || len(got) != n {
		t.Errorf("%d bytes arrived, %v; want %d", len(got), err, n)
	}
}

// Reads behave as package net's, whose errors others look into.
func TestReadsAreThoseOfPackageNet(t *testing.T) {
	server, client := pair(t)
	b := make([]byte, 8)
	server.SetReadDeadline(time.Now().Add(-time.Second))
	_, err := server.Read(b)
	var op *net.OpError
	if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &op) || op.Op != "read" || !op.Timeout() {
		t.Errorf("after the deadline: %v", err)
	}
	server.SetReadDeadline(time.Now().Add(long))

	client.Write([]byte("abcdefghij"))
	if _, err := io.ReadFull(server, b); err != nil || string(b) != "abcdefgh" {
		t.Errorf("got %q, %v", b, err)
	}
	if n, err := server.Read(b); err != nil || string(b[:n]) != "ij" {
		t.Errorf("got %q, %v", b[:n], err)
	}
	if n, err := server.Read(nil); n != 0 || err != nil {
		t.Errorf("a read of nothing: %d, %v", n, err)
	}

	client.(*net.TCPConn).CloseWrite()
	if n, err := server.Read(b); n != 0 || err != io.EOF {
		t.Errorf("at the end: %d, %v", n, err)
	}
	server.Close()
	if _, err := server.Read(b); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestReadOfAResetConnectionFails(t *testing.T) {
	server, client := pair(t)
	client.(*net.TCPConn).SetLinger(0)
	client.Close()
	server.SetReadDeadline(time.Now().Add(long))
	_, err := server.Read(make([]byte, 1))
	var op *net.OpError
	if !errors.Is(err, syscall.ECONNRESET) || !errors.As(err, &op) || op.Op != "read" {
		t.Errorf("got %v, want a reset", err)
	}
}

// A server aborts a read that waits by a deadline in the past, while another goroutine is in it.
func TestDeadlineAndCloseEndAReadThatWaits(t *testing.T) {
	for name, end := range map[string]func(net.Conn){
		"deadline": func(c net.Conn) { c.SetReadDeadline(time.Unix(1, 0)) },
		"close":    func(c net.Conn) { c.Close() },
	} {
		server, _ := pair(t)
		done := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := server.Read(make([]byte, 1))
				done <- err
			}()
		}
		end(server)
		for range 2 {
			if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestConcurrentReadersShareTheStream(t *testing.T) {
	server, client := pair(t)
	server.SetReadDeadline(time.Now().Add(long))
	const size = 1 << 20
	go func() {
		client.Write(make([]byte, size))
		client.(*net.TCPConn).CloseWrite()
	}()
	var total atomic.Int64
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			b := make([]byte, 5000)
			for {
				n, err := server.Read(b)
				total.Add(int64(n))
				if err != nil {
					if err != io.EOF {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	group.Wait()
	if total.Load() != size {
		t.Errorf("%d bytes were read, want %d", total.Load(), size)
	}
}
