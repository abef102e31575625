package zmtp_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

// python finds an interpreter with libzmq: the first in PATH, or Debian's own.
func python(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(name, "-c", "import zmq").Run() == nil {
			return name
		}
	}
	t.Skip("no libzmq for Python here (Debian: apt-get install python3-zmq)")
	return ""
}

// libzmq starts testdata/peer.py and returns its output; the test is skipped where python3-zmq is missing.
func libzmq(t *testing.T, args ...string) *bufio.Scanner {
	t.Helper()
	cmd := exec.Command(python(t), append([]string{"testdata/peer.py"}, args...)...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	return bufio.NewScanner(stdout)
}

func line(t *testing.T, s *bufio.Scanner) string {
	t.Helper()
	if !s.Scan() {
		t.Fatalf("the libzmq peer ended: %v", s.Err())
	}
	return s.Text()
}

func TestSubscribesToLibzmq(t *testing.T) {
	endpoint := line(t, libzmq(t, "pub"))
	c, err := zmtp.Dial(t.Context(), endpoint, zmtp.Params{Type: zmtp.SUB, Heartbeat: 20 * time.Millisecond, Silence: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Subscribe("kv@a"); err != nil {
		t.Fatal(err)
	}
	checkNumbered(t, c, 500)
}

// checkNumbered receives n consecutive messages as peer.py publishes them.
func checkNumbered(t *testing.T, c *zmtp.Conn, n int) {
	t.Helper()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	var m zmtp.Message
	var first uint64
	for i := range n {
		if err := c.Recv(&m); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		if len(m.Frames) != 3 || string(m.Frames[0]) != "kv@a@m" || len(m.Frames[1]) != 8 {
			t.Fatalf("message %d: frames %q", i, m.Frames)
		}
		seq := binary.BigEndian.Uint64(m.Frames[1])
		if i == 0 {
			first = seq
		}
		if seq != first+uint64(i) || len(m.Frames[2]) != int(seq%1000) {
			t.Fatalf("message %d after %d: number %d, %d bytes", i, first, seq, len(m.Frames[2]))
		}
	}
}

func TestLibzmqDialsUs(t *testing.T) {
	ln, err := zmtp.Listen(t.Context(), "tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var served sync.WaitGroup
	served.Go(func() {
		err := zmtp.Serve(ctx, ln, zmtp.Params{Type: zmtp.SUB}, func(_ context.Context, c *zmtp.Conn) {
			defer cancel()
			if err := c.Subscribe(""); err != nil {
				t.Error(err)
				return
			}
			checkNumbered(t, c, 100)
		})
		if err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	libzmq(t, "dialpub", "tcp://"+ln.Addr().String())
	served.Wait()
}

func TestLibzmqSubscribesAndAsksForReplay(t *testing.T) {
	for _, tt := range []struct {
		name   string
		layout bool
		frames int
	}{{"replay without topic", false, 3}, {"replay with topic", true, 4}} {
		t.Run(tt.name, func(t *testing.T) {
			p := startPublisher(t, zmtp.PublisherParams{Topic: "kv@a@m", ReplayTopic: tt.layout})
			out := libzmq(t, "sub", p.live, p.replays)
			if got := line(t, out); got != "ready" {
				t.Fatalf("peer says %q", got)
			}
			eventually(t, func() bool { return p.Subscriptions() == 1 })
			for i := range 3 {
				p.Publish(make([]byte, i*40000))
			}
			for i := range 3 {
				if got, want := line(t, out), fmt.Sprintf("live kv@a@m %d %d", i, i*40000); got != want {
					t.Errorf("peer says %q, want %q", got, want)
				}
			}
			var got []string
			for range 3 {
				got = append(got, line(t, out))
			}
			want := fmt.Sprintf("replay %d 1 40000,replay %d 2 80000,end %d", tt.frames, tt.frames, tt.frames)
			if strings.Join(got, ",") != want {
				t.Errorf("peer says %q, want %q", got, want)
			}
		})
	}
}

func TestAsksLibzmqForReplay(t *testing.T) {
	endpoint := line(t, libzmq(t, "router"))
	c, err := zmtp.Dial(t.Context(), endpoint, zmtp.Params{Type: zmtp.DEALER})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, 7)); err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(10 * time.Second))
	var m zmtp.Message
	for i := range 3 {
		if err := c.Recv(&m); err != nil {
			t.Fatal(err)
		}
		if seq := binary.BigEndian.Uint64(m.Frames[1]); seq != uint64(7+i) || len(m.Frames[2]) != 70000*i {
			t.Errorf("reply %d: number %d, %d bytes", i, seq, len(m.Frames[2]))
		}
	}
	if err := c.Recv(&m); err != nil || binary.BigEndian.Uint64(m.Frames[1]) != zmtp.EndOfReplay {
		t.Errorf("end of replay: %q, %v", m.Frames, err)
	}
}
