package kvevents_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllmtest"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

// TestSequenceFramesOf24Bytes: behind the number comes the name of the publisher, which tells a new
// engine life even where there is no replay socket and the numbers go on.
func TestSequenceFramesOf24Bytes(t *testing.T) {
	t.Parallel()
	for _, replay := range []bool{true, false} {
		t.Run(fmt.Sprintf("replay %v", replay), func(t *testing.T) {
			e := startEngine(t, zmtp.PublisherParams{ID: [16]byte{1, 2, 3}, ReplayTopic: true})
			p, sink := startPlane(t, quick())
			events := e.events()
			if !replay {
				events.Replay = ""
			}
			p.Add(slot, events, "a/0")
			eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
			for range 5 {
				e.publish(4, 1)
			}
			expect(t, p, sink, slot, e, kvblock.FeedExact)
			e.pub.Disconnect() // the same engine behind a new connection
			eventually(t, "connected again", func() bool { return statusOf(p, slot).Connects == 2 })
			eventually(t, "subscribed again", func() bool { return e.pub.Subscriptions() == 1 })
			e.publish(2, 0)
			s := expect(t, p, sink, slot, e, kvblock.FeedExact)
			if s.Restarts != 0 || s.Resets != 0 || s.Malformed != 0 {
				t.Errorf("status = %s", dump(s))
			}
			e.params.ID = [16]byte{9}
			e.restart()
			eventually(t, "subscribed to the new one", func() bool { return e.pub.Subscriptions() == 1 })
			if !replay { // its number is the one that is expected next: only the name tells
				e.pub.Skip(s.Next)
			}
			e.publish(3, 0)
			want := kvblock.FeedExact
			if !replay {
				want = kvblock.FeedDegraded
			}
			s = expect(t, p, sink, slot, e, want)
			if s.Restarts != 1 || s.Resets != 1 {
				t.Errorf("after a restart: status = %s", dump(s))
			}
		})
	}
}

// logs collects what a Plane logs.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logs) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

// TestWhatIsNotUnderstoodIsSaid: messages that are no batches, batches that cannot be read, unknown
// events and fields and misfits are counted and logged, each kind once; such a feed is not exact.
func TestWhatIsNotUnderstoodIsSaid(t *testing.T) {
	t.Parallel()
	e := startEngine(t, zmtp.PublisherParams{})
	out := &logs{}
	sink := newSink()
	p := kvevents.New(quick(), kvevents.Params{Sink: sink, Scope: scope.Logged(slog.New(slog.NewTextHandler(out, nil)))})
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	t.Cleanup(func() { cancel(); run.Wait() })
	pub := zmtp.NewPub(0)
	ln := listen(t, "tcp://127.0.0.1:0")
	run.Go(func() { pub.Serve(ctx, ln) })
	p.Add(slot, replica.Events{Endpoint: "tcp://" + ln.Addr().String()}, "odd/0")
	eventually(t, "subscribed", func() bool { return pub.Subscriptions() == 1 })
	send := func(seq uint64, payload []byte) { pub.Send(nil, binary.BigEndian.AppendUint64(nil, seq), payload) }

	send(0, e.change(2, 0))
	eventually(t, "exact", func() bool { return sink.state(slot) == kvblock.FeedExact })
	for range 3 {
		pub.Send([]byte("topic"), []byte{1, 2, 3}, []byte("a batch?"))
	}
	eventually(t, "malformed ones counted", func() bool { return statusOf(p, slot).Malformed == 3 })
	eventually(t, "not exact", func() bool { return sink.state(slot) == kvblock.FeedDegraded })
	if text := statusOf(p, slot).LastError; !strings.Contains(text, "frames of [5 3 8] bytes") {
		t.Errorf("LastError = %q", text)
	}
	odd := vllmtest.Stored([]uint64{77}, nil, blockTokens(7), 4)
	for seq := uint64(1); seq < 9; seq += 4 {
		send(seq, e.batch(vllmtest.Event{"type": "BlockMoved"}))
		send(seq+1, e.layout.Batch(1, 0, odd.With("token_ids", blockTokens(7)[:3])))
		send(seq+2, append(e.batch(odd), 0)) // bytes behind the batch
		extended := e.layout
		extended.Stored = append(append([]string(nil), extended.Stored...), "colour")
		send(seq+3, extended.Batch(1, 0, odd.With("colour", "red")))
	}
	eventually(t, "all of them", func() bool { return statusOf(p, slot).Next == 9 })
	if s := statusOf(p, slot); s.DecodeErrors != 2 || s.Unknown != 4 || s.Misfits != 2 || s.State != kvblock.FeedDegraded {
		t.Errorf("status = %s", dump(s))
	}
	for _, text := range []string{"without a batch number", "cannot be read", "of an unknown kind", "unknown fields", "do not match their hashes"} {
		if n := out.count(text); n < 1 || n > 2 { // the change of state may repeat the reason
			t.Errorf("%q is logged %d times, want once", text, n)
		}
	}
}

// TestGoZeroMQ follows publishers over go-zeromq, as llm-d-inference-sim has them: ZMTP 3.0 without
// PING, numbered from 1, arrays with a parent of 0, dialling the router or bound.
func TestGoZeroMQ(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "peer")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Dir = "testdata/gozeromq"
	if text, err := build.CombinedOutput(); err != nil {
		t.Skipf("go-zeromq cannot be had here: %v %s", err, text)
	}
	for _, mode := range []string{"dial", "bind"} {
		t.Run(mode, func(t *testing.T) {
			c := quick()
			c.Heartbeat = 200 * time.Millisecond
			p, sink := startPlane(t, c)
			events := replica.Events{Endpoint: "tcp://127.0.0.1:0", Topic: "kv@10.0.0.7@m"}
			endpoint := events.Endpoint
			if mode == "dial" {
				ln := listen(t, "tcp://127.0.0.1:0")
				events.Endpoint, events.Bind = "tcp://"+ln.Addr().String(), true
				ln.Close()
				endpoint = events.Endpoint
				p.Add(slot, events, "sim/0")
			}
			peer := exec.Command(binary, mode, endpoint)
			stdin, err := peer.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdout, err := peer.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := peer.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { stdin.Close(); peer.Process.Kill(); peer.Wait() })
			said := bufio.NewScanner(stdout)
			if !said.Scan() {
				t.Fatal("the publisher did not start")
			}
			if mode == "bind" {
				events.Endpoint = "tcp://" + strings.Fields(said.Text())[1]
				p.Add(slot, events, "sim/0")
			}
			eventually(t, "connected", func() bool { return statusOf(p, slot).Connected })
			e := &engine{t: t, layout: vllmtest.Layouts()[2], held: map[place]int{}, next: 1, pub: zmtp.NewPublisher(zmtp.PublisherParams{})}
			seq := uint64(0)
			publish := func() {
				seq++
				number := make([]byte, 8)
				for i := range number {
					number[i] = byte(seq >> (56 - 8*i))
				}
				fmt.Fprintf(stdin, "x%s x%s x%s\n", hex.EncodeToString([]byte(events.Topic)), hex.EncodeToString(number), hex.EncodeToString(e.change(3, 1)))
			}
			// A subscription takes a moment, and what is published before it is lost.
			eventually(t, "the first batches", func() bool {
				publish()
				time.Sleep(50 * time.Millisecond)
				return statusOf(p, slot).Batches > 0
			})
			time.Sleep(6 * c.Heartbeat) // quiet for longer than a peer with PING could be
			for range 5 {
				publish()
			}
			eventually(t, "the last batch", func() bool { return statusOf(p, slot).Next == seq+1 })
			s := statusOf(p, slot)
			if s.Connects != 1 || s.Malformed+s.DecodeErrors+s.Unknown != 0 || s.State != kvblock.FeedDegraded && s.State != kvblock.FeedExact {
				t.Errorf("status = %s", dump(s))
			}
			checkLowerBound(t, sink.content(slot), e.held)
			if len(sink.content(slot)) == 0 {
				t.Error("no block is known")
			}
		})
	}
}
