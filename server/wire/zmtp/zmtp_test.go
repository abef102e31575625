package zmtp_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type publisher struct {
	*zmtp.Publisher
	live, replays string
}

func startPublisher(t *testing.T, params zmtp.PublisherParams) *publisher {
	t.Helper()
	p := &publisher{Publisher: zmtp.NewPublisher(params)}
	ctx, cancel := context.WithCancel(t.Context())
	var served sync.WaitGroup
	t.Cleanup(func() { cancel(); served.Wait() })
	for _, part := range []struct {
		endpoint *string
		serve    func(context.Context, net.Listener) error
	}{{&p.live, p.Serve}, {&p.replays, p.ServeReplay}} {
		ln, err := zmtp.Listen(ctx, "tcp://127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		*part.endpoint = "tcp://" + ln.Addr().String()
		served.Go(func() {
			if err := part.serve(ctx, ln); err != nil {
				t.Errorf("serve: %v", err)
			}
		})
	}
	return p
}

// eventually polls what a real socket needs a moment for.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("condition not met in time")
		}
	}
}

func dial(t *testing.T, endpoint string, p zmtp.Params) *zmtp.Conn {
	t.Helper()
	c, err := zmtp.Dial(t.Context(), endpoint, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

func TestPublisherFiltersByTopicPrefix(t *testing.T) {
	pub := zmtp.NewPub(0)
	ln, err := zmtp.Listen(t.Context(), "ipc://"+filepath.Join(t.TempDir(), "pub"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var served sync.WaitGroup
	served.Go(func() { pub.Serve(ctx, ln) })
	defer served.Wait()
	defer cancel()

	c := dial(t, "ipc://"+ln.Addr().String(), zmtp.Params{Type: zmtp.SUB})
	for _, topic := range []string{"kv@a", "never"} {
		if err := c.Subscribe(topic); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() bool { return pub.Subscriptions() == 2 })
	if err := c.Unsubscribe("never"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return pub.Subscriptions() == 1 })
	for _, topic := range []string{"kv", "never", "kv@b", "kv@a", "kv@a@m"} {
		pub.Send([]byte(topic), []byte("to "+topic))
	}
	var m zmtp.Message
	for _, want := range []string{"kv@a", "kv@a@m"} {
		if err := c.Recv(&m); err != nil || string(m.Frames[0]) != want || string(m.Frames[1]) != "to "+want {
			t.Fatalf("Recv() = %q, %v, want %q", m.Frames, err, want)
		}
	}
}

func TestPublisherNumbersAndReplays(t *testing.T) {
	p := startPublisher(t, zmtp.PublisherParams{Buffer: 4})
	for i := range 6 {
		if i == 4 {
			p.Skip(10)
		}
		if i == 5 {
			p.Lose([]byte{byte(i)})
			continue
		}
		p.Publish([]byte{byte(i)})
	}
	c := dial(t, p.replays, zmtp.Params{Type: zmtp.DEALER})
	for _, start := range []uint64{0, 15, 99} {
		if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, start)); err != nil {
			t.Fatal(err)
		}
		var got []uint64
		var m zmtp.Message
		for {
			if err := c.Recv(&m); err != nil {
				t.Fatal(err)
			}
			seq := binary.BigEndian.Uint64(m.Frames[1])
			if seq == zmtp.EndOfReplay {
				break
			}
			got = append(got, seq)
		}
		var want []uint64
		for _, seq := range []uint64{2, 3, 14, 15} { // 0 and 1 fell out of the ring
			if seq >= start {
				want = append(want, seq)
			}
		}
		if len(got) != len(want) || len(got) > 0 && got[0] != want[0] {
			t.Errorf("replay from %d = %d, want %d", start, got, want)
		}
	}
}

func TestSlowSubscriberLosesMessagesAndBlocksNobody(t *testing.T) {
	p := startPublisher(t, zmtp.PublisherParams{HighWater: 10})
	c := dial(t, p.live, zmtp.Params{Type: zmtp.SUB})
	if err := c.Subscribe(""); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return p.Subscriptions() == 1 })
	payload := make([]byte, 1<<20)
	for range 100 {
		p.Publish(payload)
	}
	if p.Dropped() == 0 {
		t.Error("100 MB were taken for a subscriber that does not read")
	}
}

func TestRecvGivesUpOnASilentPeer(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go io.Copy(io.Discard, theirs)
	go theirs.Write(hello("PUB", 1))
	c, err := zmtp.Handshake(t.Context(), ours, zmtp.Params{Type: zmtp.SUB, Heartbeat: 5 * time.Millisecond, Silence: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var m zmtp.Message
	if err := c.Recv(&m); !errors.Is(err, zmtp.ErrSilent) {
		t.Errorf("Recv() = %v, want ErrSilent", err)
	}
}

func TestHeartbeatsKeepAnIdleConnection(t *testing.T) {
	p := startPublisher(t, zmtp.PublisherParams{})
	c := dial(t, p.live, zmtp.Params{Type: zmtp.SUB, Heartbeat: 5 * time.Millisecond, Silence: 2 * time.Second})
	if err := c.Subscribe(""); err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(200 * time.Millisecond))
	var m zmtp.Message
	if err := c.Recv(&m); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Recv() = %v, want the deadline", err)
	}
	c.SetDeadline(time.Time{})
	p.Publish([]byte("still here"))
	if err := c.Recv(&m); err != nil || string(m.Frames[2]) != "still here" {
		t.Errorf("Recv() = %q, %v", m.Frames, err)
	}
}

// hello is a peer's greeting and READY.
func hello(socketType string, minor byte) []byte {
	g := make([]byte, 64)
	g[0], g[9], g[10], g[11] = 0xFF, 0x7F, 3, minor
	copy(g[12:], "NULL")
	body := append([]byte("\x05READY\x0bSocket-Type\x00\x00\x00"), byte(len(socketType)))
	body = append(body, socketType...)
	return slices.Concat(g, []byte{4, byte(len(body))}, body)
}

func TestHandshakeRefuses(t *testing.T) {
	broken := func(change func([]byte)) []byte {
		h := hello("PUB", 1)
		change(h)
		return h
	}
	for _, tt := range []struct {
		name, want string
		bytes      []byte
	}{
		{"a web server", "not a ZMTP greeting", []byte("HTTP/1.1 400 Bad Request\r\n" + strings.Repeat(" ", 64))},
		{"ZMTP 2", "3.0 or later", broken(func(h []byte) { h[10] = 2 })},
		{"CURVE", "only NULL", broken(func(h []byte) { copy(h[12:], "CURVE") })},
		{"a ROUTER", "cannot connect to a ROUTER", hello("ROUTER", 0)},
		{"not a READY", "not a READY", broken(func(h []byte) { h[64] = 0 })},
		{"ERROR", `peer refuses: "go away"`, append(hello("PUB", 0)[:64], "\x04\x0e\x05ERROR\x07go away"...)},
		{"metadata cut short", "malformed metadata", broken(func(h []byte) { h[len(h)-4] = 200 })},
		{"hang-up", "EOF", hello("PUB", 1)[:40]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			go io.Copy(io.Discard, theirs)
			go func() { theirs.Write(tt.bytes); theirs.Close() }()
			_, err := zmtp.Handshake(t.Context(), ours, zmtp.Params{Type: zmtp.SUB})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Handshake() = %v, want %q", err, tt.want)
			}
		})
	}
}

func TestHandshakeEndsInTime(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go io.Copy(io.Discard, theirs)
	_, err := zmtp.Handshake(t.Context(), ours, zmtp.Params{Type: zmtp.SUB, HandshakeTimeout: 10 * time.Millisecond})
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Handshake() = %v, want the deadline", err)
	}
}

// scripted plays a PUB that sends exactly these bytes after its greeting.
func scripted(t *testing.T, script []byte, p zmtp.Params) *zmtp.Conn {
	t.Helper()
	ours, theirs := net.Pipe()
	go io.Copy(io.Discard, theirs)
	go func() { theirs.Write(append(hello("PUB", 0), script...)); theirs.Close() }()
	p.Type = zmtp.SUB
	c, err := zmtp.Handshake(t.Context(), ours, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestRecvIsBounded(t *testing.T) {
	for _, tt := range []struct {
		name   string
		script []byte
		want   error
	}{
		{"a frame above the limit", append([]byte{2}, bytes.Repeat([]byte{0x7F}, 8)...), zmtp.ErrTooLarge},
		{"a size with the sign bit", append([]byte{2}, bytes.Repeat([]byte{0xFF}, 8)...), zmtp.ErrTooLarge},
		{"many small frames", bytes.Repeat([]byte{1, 0}, 100), zmtp.ErrTooLarge},
		{"frames that sum up", bytes.Repeat(append([]byte{1, 200}, make([]byte, 200)...), 10), zmtp.ErrTooLarge},
		{"a huge command", append([]byte{6}, bytes.Repeat([]byte{1}, 8)...), zmtp.ErrTooLarge},
		{"a cut frame", []byte{0, 100, 1, 2, 3}, io.ErrUnexpectedEOF},
		{"a cut header", []byte{2, 0, 0}, io.ErrUnexpectedEOF},
		{"reserved bits", []byte{0x80, 0}, zmtp.ErrProtocol},
		{"a nameless command", []byte{4, 1, 0}, zmtp.ErrProtocol},
		{"a short PING", []byte("\x04\x06\x04PING\x00"), zmtp.ErrProtocol},
		{"a command inside a message", []byte("\x01\x00\x04\x05\x04PONG"), zmtp.ErrProtocol},
		{"the end", nil, io.EOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := scripted(t, tt.script, zmtp.Params{MaxMessage: 1000})
			var m zmtp.Message
			if err := c.Recv(&m); !errors.Is(err, tt.want) {
				t.Errorf("Recv() = %v, want %v", err, tt.want)
			}
		})
	}
}

func TestRecvTakesNoMemoryOnAnnouncement(t *testing.T) {
	script := append([]byte{2, 0, 0, 0, 0, 0x10, 0, 0, 0}, "little follows"...) // 256 MiB announced
	c := scripted(t, script, zmtp.Params{MaxMessage: 1 << 30})
	var m zmtp.Message
	if err := c.Recv(&m); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Recv() = %v", err)
	}
	if m.Cap() > 4<<20 {
		t.Errorf("%d bytes were allocated for 14", m.Cap())
	}
}

func TestRecvAnswersPingAndSkipsUnknownCommands(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	got := make(chan []byte, 1)
	go func() {
		buf := make([]byte, 64+64)
		n, _ := io.ReadAtLeast(theirs, buf, 64+20) // our greeting and READY
		_ = n
		pong := make([]byte, 2+5+3)
		io.ReadFull(theirs, pong)
		got <- pong
		io.Copy(io.Discard, theirs)
	}()
	go theirs.Write(append(hello("PUB", 1), "\x04\x0a\x04PING\x00\x00abc\x04\x08\x05FRESHxy\x00\x02hi"...))
	c, err := zmtp.Handshake(t.Context(), ours, zmtp.Params{Type: zmtp.SUB})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var m zmtp.Message
	if err := c.Recv(&m); err != nil || len(m.Frames) != 1 || string(m.Frames[0]) != "hi" {
		t.Fatalf("Recv() = %q, %v", m.Frames, err)
	}
	if pong := <-got; string(pong) != "\x04\x08\x04PONGabc" {
		t.Errorf("answer to PING = %q", pong)
	}
}

func TestEndpoints(t *testing.T) {
	for endpoint, want := range map[string]string{
		"tcp://10.0.0.7:5557": "tcp 10.0.0.7:5557",
		"tcp://*:5557":        "tcp :5557",
		"tcp://[::1]:5557":    "tcp [::1]:5557",
		"ipc:///tmp/kv":       "unix /tmp/kv",
		"inproc://x":          "error",
		"10.0.0.7:5557":       "error",
		"tcp://10.0.0.7":      "error",
		"":                    "error",
	} {
		network, address, err := zmtp.SplitEndpoint(endpoint)
		got := network + " " + address
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("Address(%q) = %q, want %q", endpoint, got, want)
		}
	}
}

func TestListenReplacesAnAbandonedSocketFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	if again, err := zmtp.Listen(t.Context(), "ipc://"+path); err == nil {
		again.Close()
		t.Error("Listen() took a socket that is in use")
	}
	ln.Close()
	again, err := zmtp.Listen(t.Context(), "ipc://"+path)
	if err != nil {
		t.Fatalf("Listen() on an abandoned socket = %v", err)
	}
	again.Close()
}

func TestRecvAllocatesNothing(t *testing.T) {
	wire := zmtp.AppendMessage(nil, []byte("topic"), make([]byte, 8), make([]byte, 2000))
	const n = 1000
	c := scripted(t, bytes.Repeat(wire, n+10), zmtp.Params{})
	var m zmtp.Message
	if err := c.Recv(&m); err != nil {
		t.Fatal(err)
	}
	if allocs := testing.AllocsPerRun(n, func() {
		if err := c.Recv(&m); err != nil {
			t.Fatal(err)
		}
	}); allocs > 0.5 {
		t.Errorf("%v allocations per message", allocs)
	}
}

func FuzzRecv(f *testing.F) {
	f.Add(zmtp.AppendMessage(nil, []byte("t"), make([]byte, 8), make([]byte, 300)))
	f.Add([]byte("\x04\x0a\x04PING\x00\x00abc\x01\x02hi\x02\x00\x00\x00\x00\x00\x00\x00\x01x"))
	f.Fuzz(func(t *testing.T, script []byte) {
		c := scripted(t, script, zmtp.Params{MaxMessage: 4096})
		var m zmtp.Message
		for {
			if err := c.Recv(&m); err != nil {
				return
			}
			size := 0
			for _, f := range m.Frames {
				size += len(f)
			}
			if size != m.Size() || size > 4096 || len(m.Frames) == 0 {
				t.Fatalf("message of %d bytes in %d frames, Size() = %d", size, len(m.Frames), m.Size())
			}
		}
	})
}

func BenchmarkRecv(b *testing.B) {
	ln, err := zmtp.Listen(b.Context(), "tcp://127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	wire := bytes.Repeat(zmtp.AppendMessage(nil, []byte("topic"), make([]byte, 8), make([]byte, 2000)), 32)
	ctx, cancel := context.WithCancel(b.Context())
	var served sync.WaitGroup
	defer served.Wait()
	defer cancel()
	served.Go(func() {
		zmtp.Serve(ctx, ln, zmtp.Params{Type: zmtp.PUB}, func(_ context.Context, c *zmtp.Conn) {
			for c.WriteEncoded(wire) == nil {
			}
		})
	})
	c, err := zmtp.Dial(ctx, "tcp://"+ln.Addr().String(), zmtp.Params{Type: zmtp.SUB, Heartbeat: time.Second})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	var m zmtp.Message
	b.ReportAllocs()
	b.SetBytes(2000)
	for b.Loop() {
		if err := c.Recv(&m); err != nil {
			b.Fatal(err)
		}
	}
}
