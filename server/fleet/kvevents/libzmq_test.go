package kvevents_test

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllmtest"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

// foreign is an engine whose sockets are libzmq's.
type foreign struct {
	t      *testing.T
	python string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	out    *bufio.Scanner
	live   string
	ring   string
	topic  string // "1": replays carry the topic
}

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

func startForeign(t *testing.T, live, ring, topic string) *foreign {
	t.Helper()
	f := &foreign{t: t, python: python(t), live: live, ring: ring, topic: topic}
	f.start()
	t.Cleanup(f.kill)
	return f
}

func (f *foreign) start() {
	f.t.Helper()
	var words []string
	eventually(f.t, "a libzmq publisher", func() bool { // its sockets may still be taken by the one before
		f.cmd = exec.Command(f.python, "testdata/publisher.py", f.live, f.ring, f.topic)
		var err error
		if f.stdin, err = f.cmd.StdinPipe(); err != nil {
			f.t.Fatal(err)
		}
		stdout, err := f.cmd.StdoutPipe()
		if err != nil {
			f.t.Fatal(err)
		}
		if err := f.cmd.Start(); err != nil {
			f.t.Fatal(err)
		}
		f.out = bufio.NewScanner(stdout)
		f.out.Buffer(nil, 1<<20)
		if f.out.Scan() {
			words = strings.Fields(f.out.Text())
			return true
		}
		f.kill()
		return false
	})
	f.live, f.ring = words[1], words[2]
}

func (f *foreign) kill() {
	f.stdin.Close()
	f.cmd.Process.Kill()
	f.cmd.Wait()
}

func (f *foreign) do(command string, payload []byte) {
	f.t.Helper()
	fmt.Fprintln(f.stdin, command, hex.EncodeToString(payload))
	if !f.out.Scan() {
		f.t.Fatal("the libzmq publisher ended")
	}
}

// TestForeignPublisher follows a libzmq publisher through a late start with more batches than its
// replay socket can queue, losses, a hole and a restart.
func TestForeignPublisher(t *testing.T) {
	t.Parallel()
	for _, topic := range []string{"0", "1"} {
		t.Run("replays with topic "+topic, func(t *testing.T) {
			f := startForeign(t, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", topic)
			e := &engine{t: t, layout: vllmtest.Newest(), held: map[place]int{}, next: 1, pub: zmtp.NewPublisher(zmtp.PublisherParams{})}
			for range 4000 {
				f.do("lose", e.change(8, 3))
			}
			c := quick()
			p, sink := startPlane(t, c)
			p.Add(slot, replica.Events{Endpoint: f.live, Replay: f.ring, Topic: "kv@"}, "peer/0")
			expect(t, p, sink, slot, e, kvblock.FeedExact)
			for i := range 300 {
				command := "send"
				if i%50 == 49 {
					command = "lose"
				}
				f.do(command, e.change(2, 2))
			}
			s := expect(t, p, sink, slot, e, kvblock.FeedExact)
			if s.Resets != 0 || s.Restarts != 0 {
				t.Errorf("status = %s", dump(s))
			}
			t.Logf("after a late start and losses: gaps %d, replays %d, replayed %d of 4300", s.Gaps, s.Replays, s.Replayed)

			f.kill()
			f.start()
			clear(e.held)
			for range 10 {
				f.do("send", e.change(3, 1))
			}
			s = expect(t, p, sink, slot, e, kvblock.FeedExact)
			if s.Resets != 1 || s.Restarts != 1 {
				t.Errorf("status after a restart = %s", dump(s))
			}
			f.do("skip", nil)
			clear(e.held)
			f.do("send", e.batch(vllmtest.Cleared()))
			f.do("send", e.change(3, 1))
			expect(t, p, sink, slot, e, kvblock.FeedExact)
		})
	}
}
