package socket_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
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
