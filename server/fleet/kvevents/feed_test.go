package kvevents_test

import (
	"context"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllmtest"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

const slot = replica.Slot(3)

func TestFollowsAnEngineFromItsStart(t *testing.T) {
	t.Parallel()
	for _, layout := range vllmtest.Layouts() {
		t.Run(layout.Name, func(t *testing.T) {
			e := startEngine(t, zmtp.PublisherParams{Topic: "kv@a", ReplayTopic: layout.Map})
			e.layout = layout
			c := quick()
			c.Probe = 0 // on a busy machine a probe overtakes batches that were sent, and counts them as lost
			p, sink := startPlane(t, c)
			p.Add(slot, e.events(), "a/0")
			expect(t, p, sink, slot, e, kvblock.FeedExact) // nothing published is exact too
			eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
			for range 20 {
				e.publish(8, 2)
			}
			s := expect(t, p, sink, slot, e, kvblock.FeedExact)
			if s.Gaps+s.Resets+s.DecodeErrors+s.Unknown != 0 || s.Connects != 1 || s.Stored != 160 || s.Next != 20 {
				t.Errorf("status = %s", dump(s))
			}
			if s.LastEvent.IsZero() || time.Since(s.LastEvent) > time.Minute {
				t.Errorf("LastEvent = %v", s.LastEvent)
			}
		})
	}
}

func TestLateStart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		buffer int
		want   kvblock.FeedState
	}{
		{"the ring holds everything", 1000, kvblock.FeedExact},
		{"the ring has lost the beginning", 50, kvblock.FeedDegraded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := startEngine(t, zmtp.PublisherParams{Buffer: tt.buffer})
			for range 100 {
				e.publish(4, 1)
			}
			p, sink := startPlane(t, quick())
			p.Add(slot, e.events(), "a/0")
			eventually(t, "the replay's end", func() bool {
				s, _ := p.Status(slot)
				return s.State == tt.want && s.Next == 100
			})
			checkLowerBound(t, sink.content(slot), e.held)
			if tt.want == kvblock.FeedExact {
				expect(t, p, sink, slot, e, tt.want)
				return
			}
			if n := len(sink.content(slot)); n < 50 {
				t.Errorf("%d blocks known, want most of the last 200", n)
			}
			e.clear() // an empty cache is known exactly
			e.publish(3, 0)
			expect(t, p, sink, slot, e, kvblock.FeedExact)
		})
	}
}

// checkLowerBound fails if got holds what the engine does not.
func checkLowerBound(t *testing.T, got, want map[place]int) {
	t.Helper()
	for p, n := range got {
		if want[p] < n {
			t.Errorf("%v %x is believed to be held %d times, the engine holds it %d times", p.tier, p.hash, n, want[p])
		}
	}
}

func TestGapIsFilledByReplay(t *testing.T) {
	t.Parallel()
	c := quick()
	c.Probe = 0 // it could find a part of the loss first
	e := startEngine(t, zmtp.PublisherParams{})
	p, sink := startPlane(t, c)
	p.Add(slot, e.events(), "a/0")
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
	e.publish(4, 0)
	expect(t, p, sink, slot, e, kvblock.FeedExact)
	for range 3 {
		e.pub.Lose(e.change(5, 2))
	}
	e.publish(1, 1)
	s := expect(t, p, sink, slot, e, kvblock.FeedExact)
	if s.Gaps != 1 || s.Resets != 0 || s.Replayed < 3 {
		t.Errorf("status = %s", dump(s))
	}
}

func TestProbeFindsWhatWasLostAtTheEnd(t *testing.T) {
	t.Parallel()
	e, p, sink := followEngine(t, quick())
	eventually(t, "the first replay has ended", func() bool { return !statusOf(p, slot).Recovering })
	before := statusOf(p, slot).Gaps // a probe may have overtaken the first batch
	e.pub.Lose(e.change(5, 2))
	s := expect(t, p, sink, slot, e, kvblock.FeedExact)
	if s.Gaps != before+1 || s.Resets != 0 {
		t.Errorf("status = %s", dump(s))
	}
}

func TestHoleThatNoReplayFills(t *testing.T) {
	t.Parallel()
	e, p, sink := followEngine(t, quick())
	e.change(0, 2) // a batch that the engine could not encode
	e.pub.Skip(1)
	e.publish(2, 0)
	eventually(t, "degraded", func() bool { return sink.state(slot) == kvblock.FeedDegraded && len(sink.content(slot)) == 2 })
	checkLowerBound(t, sink.content(slot), e.held)
	e.clear()
	e.publish(2, 0)
	s := expect(t, p, sink, slot, e, kvblock.FeedExact)
	if s.Resets != 1 || s.Replays > 20 {
		t.Errorf("status = %s", dump(s))
	}
}

func TestReplayFullOfHolesEnds(t *testing.T) {
	t.Parallel()
	e := startEngine(t, zmtp.PublisherParams{})
	for range 300 {
		e.publish(1, 0)
		e.pub.Skip(1)
	}
	e.clear()
	e.publish(3, 1)
	p, sink := startPlane(t, quick())
	p.Add(slot, e.events(), "a/0")
	expect(t, p, sink, slot, e, kvblock.FeedExact)
}

func TestRestart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name          string
		before, after int
		replay        bool
	}{
		{"fewer batches than before", 20, 3, true},
		{"more batches than before", 3, 20, true},
		{"as many batches", 10, 10, true},
		{"nothing yet", 10, 0, true},
		{"without replay", 10, 3, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := startEngine(t, zmtp.PublisherParams{})
			p, sink := startPlane(t, quick())
			events := e.events()
			if !tt.replay {
				events.Replay = ""
			}
			p.Add(slot, events, "a/0")
			eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
			for range tt.before {
				e.publish(4, 0)
			}
			expect(t, p, sink, slot, e, kvblock.FeedExact)
			e.restart()
			if !tt.replay { // nothing but the first batch can tell
				eventually(t, "subscribed again", func() bool { return e.pub.Subscriptions() == 1 })
			}
			for range tt.after {
				e.publish(4, 0)
			}
			s := expect(t, p, sink, slot, e, kvblock.FeedExact)
			if s.Resets != 1 || s.Restarts != 1 || s.Connects < 2 {
				t.Errorf("status = %s", dump(s))
			}
		})
	}
}

func TestRestartSeenByOthers(t *testing.T) {
	t.Parallel()
	e := startEngine(t, zmtp.PublisherParams{})
	p, sink := startPlane(t, quick())
	events := e.events()
	events.Replay = ""
	p.Add(slot, events, "a/0")
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
	e.publish(4, 0)
	expect(t, p, sink, slot, e, kvblock.FeedExact)
	p.Restarted(slot, time.Now().Add(-time.Hour)) // the present process: no news
	e.publish(1, 0)
	if s := expect(t, p, sink, slot, e, kvblock.FeedExact); s.Restarts != 0 {
		t.Errorf("status = %s", dump(s))
	}
	p.Restarted(slot, time.Now())
	eventually(t, "the reset", func() bool { return len(sink.content(slot)) == 0 && sink.state(slot) == kvblock.FeedCold })
}

func TestBrokenConnectionKeepsWhatIsKnown(t *testing.T) {
	t.Parallel()
	e, p, sink := followEngine(t, quick())
	for range 5 {
		e.pub.Disconnect()
		e.publish(3, 2) // nobody is connected, or the new connection: either way it must arrive
	}
	s := expect(t, p, sink, slot, e, kvblock.FeedExact)
	if s.Resets != 0 || s.Restarts != 0 {
		t.Errorf("status = %s", dump(s))
	}
	eventually(t, "another connection", func() bool { s, _ := p.Status(slot); return s.Connects >= 2 })
}

func TestUnreachableEngineIsForgotten(t *testing.T) {
	t.Parallel()
	c := quick()
	c.ForgetAfter = 300 * time.Millisecond
	e, p, sink := followEngine(t, c)
	e.kill()
	eventually(t, "degraded", func() bool { return sink.state(slot) == kvblock.FeedDegraded })
	if len(sink.content(slot)) != 4 {
		t.Error("blocks were forgotten at once")
	}
	eventually(t, "forgotten", func() bool { return sink.state(slot) == kvblock.FeedCold && len(sink.content(slot)) == 0 })
	e.start()
	e.publish(2, 0)
	expect(t, p, sink, slot, e, kvblock.FeedExact)
}

func TestWithoutReplay(t *testing.T) {
	t.Parallel()
	e := startEngine(t, zmtp.PublisherParams{})
	p, sink := startPlane(t, quick())
	events := e.events()
	events.Replay = ""
	e.publish(3, 0) // before anybody listens
	p.Add(slot, events, "a/0")
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
	eventually(t, "cold before the first batch", func() bool { return sink.state(slot) == kvblock.FeedCold })
	e.publish(3, 0)
	eventually(t, "degraded", func() bool { return sink.state(slot) == kvblock.FeedDegraded && len(sink.content(slot)) == 3 })
	e.pub.Lose(e.change(1, 1))
	e.publish(2, 0)
	eventually(t, "the reset", func() bool { return len(sink.content(slot)) == 2 })
	checkLowerBound(t, sink.content(slot), e.held)
	e.clear()
	e.publish(2, 0)
	s := expect(t, p, sink, slot, e, kvblock.FeedExact)
	if s.Resets != 1 || s.Replays != 0 {
		t.Errorf("status = %s", dump(s))
	}
}

func TestRingOfNoSize(t *testing.T) {
	t.Parallel()
	e := startEngine(t, zmtp.PublisherParams{})
	empty := startEngine(t, zmtp.PublisherParams{}) // its ROUTER never has anything
	p, sink := startPlane(t, quick())
	events := e.events()
	events.Replay = empty.replays
	p.Add(slot, events, "a/0")
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
	e.publish(3, 0)
	e.pub.Lose(e.change(1, 1))
	e.publish(2, 0)
	eventually(t, "the reset", func() bool { return len(sink.content(slot)) == 2 && sink.state(slot) == kvblock.FeedDegraded })
	e.clear()
	e.publish(2, 0)
	expect(t, p, sink, slot, e, kvblock.FeedExact)
}

func TestReplaySocketThatComesLater(t *testing.T) {
	t.Parallel()
	e := startEngine(t, zmtp.PublisherParams{})
	for range 10 {
		e.publish(4, 1)
	}
	p, sink := startPlane(t, quick())
	events := e.events()
	ln := listen(t, "tcp://127.0.0.1:0") // accepts and never answers
	events.Replay = "tcp://" + ln.Addr().String()
	p.Add(slot, events, "a/0")
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
	e.publish(2, 0)
	eventually(t, "a lower bound", func() bool { return sink.state(slot) == kvblock.FeedDegraded && len(sink.content(slot)) == 2 })
	ln.Close()

	ctx, cancel := context.WithCancel(t.Context())
	var served sync.WaitGroup
	defer served.Wait()
	defer cancel()
	late := listen(t, events.Replay)
	served.Go(func() { e.pub.ServeReplay(ctx, late) })
	expect(t, p, sink, slot, e, kvblock.FeedExact)
}

func TestMovedSockets(t *testing.T) {
	t.Parallel()
	e, other := startEngine(t, zmtp.PublisherParams{}), startEngine(t, zmtp.PublisherParams{})
	p, sink := startPlane(t, quick())
	p.Add(slot, e.events(), "a/0")
	for range 5 {
		e.publish(4, 0)
	}
	expect(t, p, sink, slot, e, kvblock.FeedExact)

	// The same engine under another name: nothing is forgotten.
	same := e.events()
	same.Endpoint = "tcp://localhost:" + same.Endpoint[len("tcp://127.0.0.1:"):]
	p.Add(slot, same, "a/0")
	e.publish(2, 1)
	if s := expect(t, p, sink, slot, e, kvblock.FeedExact); s.Resets != 0 {
		t.Errorf("status = %s", dump(s))
	}
	// Another engine: everything is.
	for range 9 {
		other.publish(2, 0)
	}
	p.Add(slot, other.events(), "a/0")
	if s := expect(t, p, sink, slot, other, kvblock.FeedExact); s.Resets != 1 || s.Restarts != 1 {
		t.Errorf("status = %s", dump(s))
	}
	// No feed at all.
	p.Add(slot, replica.Events{}, "a/0")
	eventually(t, "state none", func() bool { return sink.state(slot) == kvblock.FeedNone && len(sink.content(slot)) == 0 })
}

func TestRemoveIsFinal(t *testing.T) {
	t.Parallel()
	e := startEngine(t, zmtp.PublisherParams{})
	p, sink := startPlane(t, quick())
	for range 20 {
		p.Add(slot, e.events(), "a/0")
		for range 50 {
			e.publish(3, 1)
		}
		p.Remove(slot)
		before := sink.content(slot)
		e.publish(3, 1)
		if !maps.Equal(before, sink.content(slot)) {
			t.Fatal("the sink was called after Remove")
		}
		if _, ok := p.Status(slot); ok {
			t.Fatal("Status() knows a removed rank")
		}
		sink.Reset(slot) // as the index forgets a removed rank
	}
}

func TestFallingBehindEndsExact(t *testing.T) {
	t.Parallel()
	c := quick()
	c.QueueBytes, c.MaxMessageBytes = 1<<20, 64<<10
	e := startEngine(t, zmtp.PublisherParams{HighWater: 50})
	p, sink := startPlane(t, c)
	sink.gate = make(chan struct{})
	p.Add(slot, e.events(), "a/0")
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
	pad := strings.Repeat("x", 48<<10) // sockets buffer megabytes
	eventually(t, "the engine drops batches", func() bool {
		h := e.next
		e.next++
		e.held[place{kvblock.TierGPU, kvblock.EngineHash(h)}]++
		e.pub.Publish(e.batch(vllmtest.Stored([]uint64{h}, nil, blockTokens(h), 4).With("session_id", pad)))
		return e.pub.Dropped() > 0
	})
	if s, _ := p.Status(slot); s.Pauses == 0 {
		t.Error("the router never stopped reading")
	}
	if s, _ := p.Status(slot); s.QueuedBytes > int64(c.QueueBytes) {
		t.Errorf("%d bytes are queued, the limit is %d", s.QueuedBytes, c.QueueBytes)
	}
	close(sink.gate)
	expect(t, p, sink, slot, e, kvblock.FeedExact)
	// A gap at the very end is found by a probe, which counts it when it is over.
	eventually(t, "the gap is counted", func() bool { s, _ := p.Status(slot); return s.Gaps > 0 })
	if s, _ := p.Status(slot); s.Resets != 0 {
		t.Errorf("status = %s", dump(s))
	}
}

func TestAFullQueueStopsReading(t *testing.T) {
	t.Parallel()
	c := quick()
	c.QueueBytes, c.MaxMessageBytes = 1<<20, 512<<10 // one batch may exceed a rank's share
	c.Probe = 0
	e := startEngine(t, zmtp.PublisherParams{})
	p, sink := startPlane(t, c)
	sink.gate = make(chan struct{})
	p.Add(slot, e.events(), "a/0")
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
	e.publish(20_000, 0)
	for range 2000 {
		e.publish(16, 0)
	}
	eventually(t, "reading has stopped", func() bool { s, _ := p.Status(slot); return s.Pauses > 0 })
	if s, _ := p.Status(slot); s.QueuedBytes > int64(c.QueueBytes) {
		t.Errorf("%d bytes are queued, the limit is %d", s.QueuedBytes, c.QueueBytes)
	}
	close(sink.gate)
	if s := expect(t, p, sink, slot, e, kvblock.FeedExact); s.Gaps+s.Resets != 0 || e.pub.Dropped() != 0 {
		t.Errorf("%d batches were dropped on the way, status = %s", e.pub.Dropped(), dump(s))
	}
}

func TestAFeedThatHasStoppedReadingEnds(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"by its removal", "with the plane"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			c := quick()
			c.QueueBytes, c.MaxMessageBytes = 1<<20, 64<<10
			e := startEngine(t, zmtp.PublisherParams{})
			p, sink := startPlane(t, c)
			gate := make(chan struct{})
			sink.gate = gate
			p.Add(slot, e.events(), "a/0")
			eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
			for range 3000 {
				e.publish(16, 0)
			}
			eventually(t, "reading has stopped", func() bool { s, _ := p.Status(slot); return s.Pauses > 0 })
			if end == "with the plane" {
				t.Cleanup(func() { close(gate) }) // before the plane's own clean-up, which waits for its goroutines
				return
			}
			close(gate)
			p.Remove(slot)
			if _, ok := p.Status(slot); ok {
				t.Error("the rank has a status after its removal")
			}
		})
	}
}

func TestEnginesDialTheRouter(t *testing.T) {
	t.Parallel()
	p, sink := startPlane(t, quick())
	a, b := startEngine(t, zmtp.PublisherParams{Topic: "kv@a@m"}), startEngine(t, zmtp.PublisherParams{Topic: "kv@b@m"})
	ln := listen(t, "tcp://127.0.0.1:0")
	endpoint := "tcp://" + ln.Addr().String()
	ln.Close()
	for i, e := range []*engine{a, b} {
		p.Add(replica.Slot(i), replica.Events{Endpoint: endpoint, Bind: true, Topic: e.params.Topic, Replay: e.replays}, e.params.Topic)
	}
	dial := func(e *engine) (hangUp func()) {
		ctx, cancel := context.WithCancel(t.Context())
		var dialled sync.WaitGroup
		dialled.Go(func() {
			for ctx.Err() == nil {
				e.pub.Dial(ctx, endpoint)
				time.Sleep(10 * time.Millisecond)
			}
		})
		return sync.OnceFunc(func() { cancel(); dialled.Wait() })
	}
	stopA, stopB := dial(a), dial(b)
	t.Cleanup(func() { stopA(); stopB() })
	for _, e := range []*engine{a, b} {
		eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() >= 2 }) // to both topics
		for range 10 {
			e.publish(4, 1)
		}
	}
	expect(t, p, sink, 0, a, kvblock.FeedExact)
	expect(t, p, sink, 1, b, kvblock.FeedExact)

	stopB()
	b.restart()
	b.publish(2, 0)
	stopB = dial(b)
	eventually(t, "subscribed again", func() bool { return b.pub.Subscriptions() >= 2 })
	b.publish(2, 0)
	a.publish(2, 0)
	if s := expect(t, p, sink, 1, b, kvblock.FeedExact); s.Restarts != 1 {
		t.Errorf("status of b = %s", dump(s))
	}
	if s := expect(t, p, sink, 0, a, kvblock.FeedExact); s.Resets != 0 {
		t.Errorf("status of a = %s", dump(s))
	}
	p.Remove(0)
	b.publish(2, 1)
	expect(t, p, sink, 1, b, kvblock.FeedExact)
	p.Remove(1)
}

func TestTwoEnginesOnOneSocketDoNotLoop(t *testing.T) {
	t.Parallel()
	c := quick()
	p, sink := startPlane(t, c)
	a, b := startEngine(t, zmtp.PublisherParams{}), startEngine(t, zmtp.PublisherParams{})
	// A proxy that mixes both streams.
	mixed := zmtp.NewPub(0)
	ln := listen(t, "tcp://127.0.0.1:0")
	ctx, cancel := context.WithCancel(t.Context())
	var served sync.WaitGroup
	defer served.Wait()
	defer cancel()
	served.Go(func() { mixed.Serve(ctx, ln) })
	p.Add(slot, replica.Events{Endpoint: "tcp://" + ln.Addr().String(), Replay: a.replays}, "a/0")
	eventually(t, "subscribed", func() bool { return mixed.Subscriptions() == 1 })
	for i := range 200 {
		for _, e := range []*engine{a, b} {
			payload := e.change(2, 0)
			e.pub.Publish(payload)
			mixed.Send(nil, []byte{0, 0, 0, 0, 0, 0, 0, byte(i)}, payload)
		}
	}
	eventually(t, "all is read", func() bool { s, _ := p.Status(slot); return s.Queued == 0 && !s.Recovering && s.Batches > 100 })
	if s, _ := p.Status(slot); s.Replays > 50 {
		t.Errorf("%d replays for a stream that makes no sense", s.Replays)
	}
	_ = sink
}

func TestUnreadableBatches(t *testing.T) {
	t.Parallel()
	e, p, sink := followEngine(t, quick())
	e.change(1, 1)
	e.pub.Publish([]byte("\x93\x01\x91\xa5wrong\x00"))
	e.publish(2, 0)
	eventually(t, "degraded", func() bool { return sink.state(slot) == kvblock.FeedDegraded && len(sink.content(slot)) == 2 })
	checkLowerBound(t, sink.content(slot), e.held)
	e.clear()
	e.publish(2, 0)
	s := expect(t, p, sink, slot, e, kvblock.FeedExact)
	if s.DecodeErrors == 0 || s.Resets != 1 || s.LastError == "" {
		t.Errorf("status = %s", dump(s))
	}
}

func TestStatuses(t *testing.T) {
	t.Parallel()
	p := kvevents.New(kvevents.DefaultConfig(), kvevents.Params{Sink: newSink()})
	for _, s := range []replica.Slot{7, 2, 5} {
		p.Add(s, replica.Events{}, "r")
	}
	p.Remove(5)
	list := p.Statuses()
	if len(list) != 2 || list[0].Slot != 2 || list[1].Slot != 7 || list[0].State != kvblock.FeedNone {
		t.Errorf("Statuses() = %+v", list)
	}
}

// statusOf is the rank's status as it stands.
func statusOf(p *kvevents.Plane, slot replica.Slot) kvevents.Status {
	for _, s := range p.Statuses() {
		if s.Slot == slot {
			return s
		}
	}
	return kvevents.Status{}
}
