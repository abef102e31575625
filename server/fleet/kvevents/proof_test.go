package kvevents_test

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

// otherHashes is where the hashes of the other engine's blocks begin.
const otherHashes = 1000

// twoEngines starts two engines that have published before the router comes.
func twoEngines(t *testing.T, past, others int) (e, other *engine) {
	t.Helper()
	e, other = startEngine(t, zmtp.PublisherParams{}), startEngine(t, zmtp.PublisherParams{})
	other.next = otherHashes
	for range past {
		e.publish(2, 0)
	}
	for range others {
		other.publish(2, 0)
	}
	return e, other
}

// with returns the sockets of e with another engine's replay socket.
func (e *engine) with(other *engine) replica.Events {
	events := e.events()
	events.Replay = other.replays
	return events
}

// wary is a sink that notes whether a rank becomes exact after a block of its own engine has come.
type wary struct {
	*mapSink
	mu        sync.Mutex
	came, bad bool
}

func (w *wary) Store(slot replica.Slot, ev *kvblock.Stored) {
	w.mu.Lock()
	w.came = w.came || ev.Hashes[0] < otherHashes
	w.mu.Unlock()
	w.mapSink.Store(slot, ev)
}

func (w *wary) SetState(slot replica.Slot, state kvblock.FeedState) {
	w.mu.Lock()
	w.bad = w.bad || w.came && state == kvblock.FeedExact
	w.mu.Unlock()
	w.mapSink.SetState(slot, state)
}

func (w *wary) wrong() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bad
}

// settled reports whether a first replay has ended.
func settled(p *kvevents.Plane) func() bool {
	return func() bool {
		s := statusOf(p, slot)
		return s.Connected && s.Known && !s.Recovering
	}
}

func TestAReplaySocketOfAnotherEngine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name         string
		past, others int
		early        bool // live batches come while the first replay runs
	}{
		{"the other engine is behind", 20, 5, false},
		{"the other engine is ahead", 5, 20, false},
		{"both are at the same number", 10, 10, false},
		{"the engine has published nothing", 0, 10, false},
		{"the other engine has one batch", 10, 1, false},
		{"live batches come first", 20, 5, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e, other := twoEngines(t, tt.past, tt.others)
			clear(e.held) // what was before cannot be known from the event socket
			w := &wary{mapSink: newSink()}
			p := startPlaneWith(t, quick(), w, w.mapSink)
			p.Add(slot, e.with(other), "a/0")
			eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
			if !tt.early {
				eventually(t, "the first replay has ended", settled(p))
			}
			for range 4 {
				e.publish(2, 1)
			}
			s := expect(t, p, w.mapSink, slot, e, kvblock.FeedDegraded)
			if !strings.Contains(s.Foreign, "belongs to another engine") || s.LastError != s.Foreign || s.Restarts != 0 {
				t.Errorf("status = %s", dump(s))
			}
			other.publish(3, 0) // is of no interest
			e.publish(3, 1)
			if s = expect(t, p, w.mapSink, slot, e, kvblock.FeedDegraded); s.Foreign == "" {
				t.Errorf("status = %s", dump(s))
			}
			if w.wrong() {
				t.Error("the rank was called exact after a batch had come")
			}
		})
	}
}

// The other engine's batches stay away although live batches are lost, and what was known before a loss goes.
func TestAGapBeforeAReplaySocketOfAnotherEngine(t *testing.T) {
	t.Parallel()
	e, other := twoEngines(t, 0, 10)
	p, sink := startPlane(t, quick())
	p.Add(slot, e.with(other), "a/0")
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
	e.publish(2, 0)
	expect(t, p, sink, slot, e, kvblock.FeedDegraded)
	e.pub.Lose(e.change(2, 1))
	clear(e.held)
	e.publish(4, 0)
	if s := expect(t, p, sink, slot, e, kvblock.FeedDegraded); s.Foreign == "" || s.Gaps != 1 {
		t.Errorf("status = %s", dump(s))
	}
}

func TestReplaySocketsOfTheSameEngine(t *testing.T) {
	t.Parallel()
	c := quick()
	c.Probe = 0 // a probe may overtake a batch, which counts as a gap
	e, other := twoEngines(t, 10, 20)
	p, sink := startPlane(t, c)
	p.Add(slot, e.events(), "a/0")
	p.Add(slot+1, other.events(), "b/0")
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 && other.pub.Subscriptions() == 1 })
	for range 3 {
		expect(t, p, sink, slot, e, kvblock.FeedExact)
		expect(t, p, sink, slot+1, other, kvblock.FeedExact)
		e.publish(2, 1)
		other.publish(2, 1)
	}
	for at, whose := range map[replica.Slot]*engine{slot: e, slot + 1: other} {
		s := expect(t, p, sink, at, whose, kvblock.FeedExact)
		if s.Foreign != "" || s.Resets+s.Gaps != 0 || s.Replays != 2 { // the first, and the comparison
			t.Errorf("status = %s", dump(s))
		}
	}
}

func TestExchangedReplaySocketsAreCorrected(t *testing.T) {
	t.Parallel()
	e, other := twoEngines(t, 10, 20)
	p, sink := startPlane(t, quick())
	p.Add(slot, e.with(other), "a/0")
	p.Add(slot+1, other.with(e), "b/0")
	foreign := func() bool { return statusOf(p, slot).Foreign != "" && statusOf(p, slot+1).Foreign != "" }
	eventually(t, "the first replay has ended", settled(p))
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 && other.pub.Subscriptions() == 1 })
	e.publish(2, 0)
	other.publish(2, 0)
	eventually(t, "both are found", foreign)
	p.Add(slot, e.events(), "a/0")
	p.Add(slot+1, other.events(), "b/0")
	if s := expect(t, p, sink, slot, e, kvblock.FeedExact); s.Foreign != "" {
		t.Errorf("status = %s", dump(s))
	}
	expect(t, p, sink, slot+1, other, kvblock.FeedExact)
}

// The engine behind a replay address may change while the router runs.
func TestAReplaySocketThatBecomesRight(t *testing.T) {
	t.Parallel()
	e, other := twoEngines(t, 5, 10)
	p, sink := startPlane(t, quick())
	p.Add(slot, e.with(other), "a/0")
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
	e.publish(2, 0)
	eventually(t, "found", func() bool { return statusOf(p, slot).Foreign != "" })
	other.kill()
	late := listen(t, other.replays)
	var served sync.WaitGroup
	served.Go(func() { e.pub.ServeReplay(t.Context(), late) })
	t.Cleanup(served.Wait)
	eventually(t, "found although events come all the time", func() bool {
		e.publish(1, 0)
		return statusOf(p, slot).Foreign == ""
	})
	if s := expect(t, p, sink, slot, e, kvblock.FeedExact); s.Foreign != "" {
		t.Errorf("status = %s", dump(s))
	}
}

// An engine that restarts has another last batch for a moment, and is no other engine.
func TestARestartIsNoOtherEngine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		past, after int
	}{{"more batches than before", 2, 9}, {"fewer batches than before", 9, 2}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := startEngine(t, zmtp.PublisherParams{})
			p, sink := startPlane(t, quick())
			p.Add(slot, e.events(), "a/0")
			eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
			for range 3 {
				for range tt.past {
					e.publish(2, 0)
				}
				e.restart()
				for range tt.after {
					e.publish(2, 0)
				}
				expect(t, p, sink, slot, e, kvblock.FeedExact)
				eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
			}
			e.publish(2, 0)
			if s := expect(t, p, sink, slot, e, kvblock.FeedExact); s.Foreign != "" {
				t.Errorf("status = %s", dump(s))
			}
		})
	}
}

func TestARestartBeforeAReplaySocketOfAnotherEngine(t *testing.T) {
	t.Parallel()
	e, other := twoEngines(t, 3, 10)
	w, log := &wary{mapSink: newSink()}, &heldLog{}
	p := kvevents.New(quick(), kvevents.Params{Sink: w, Scope: scope.Logged(slog.New(slog.NewTextHandler(log, nil)))})
	run(t, p, w.mapSink)
	p.Add(slot, e.with(other), "a/0")
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
	eventually(t, "the first replay has ended", settled(p))
	e.publish(2, 0)
	eventually(t, "found twice", func() bool { return strings.Contains(log.String(), "level=WARN") })
	e.restart()
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
	e.publish(3, 0)
	if s := expect(t, p, w.mapSink, slot, e, kvblock.FeedDegraded); s.Foreign == "" || s.Restarts != 1 {
		t.Errorf("status = %s", dump(s))
	}
	if w.wrong() {
		t.Error("the rank was called exact after a batch had come")
	}
}

// An engine that is quiet gives nothing to compare. A replay socket that brings news all the same is not believed for long.
func TestReplaysOfAQuietEngineThatBringNews(t *testing.T) {
	t.Parallel()
	e, other := twoEngines(t, 3, 3)
	p, sink := startPlane(t, quick())
	p.Add(slot, e.with(other), "a/0")
	eventually(t, "the first replay has ended", settled(p))
	eventually(t, "degraded", func() bool {
		before := len(sink.content(slot))
		other.publish(1, 0)
		eventually(t, "a probe finds it", func() bool { return len(sink.content(slot)) > before })
		return sink.state(slot) == kvblock.FeedDegraded
	})
	if s := statusOf(p, slot); !strings.Contains(s.LastError, "the event socket delivers none") {
		t.Errorf("status = %s", dump(s))
	}
	clear(e.held)
	e.publish(2, 0)
	if s := expect(t, p, sink, slot, e, kvblock.FeedDegraded); s.Foreign == "" {
		t.Errorf("status = %s", dump(s))
	}
}

// A position from another router, which knows the engine, is worth more than the wrong replay socket.
func TestAPositionBeforeAReplaySocketOfAnotherEngine(t *testing.T) {
	t.Parallel()
	e, other := twoEngines(t, 5, 10)
	p, sink := startPlane(t, quick())
	p.Add(slot, e.with(other), "a/0")
	p.Add(slot+1, e.events(), "a/0 as it is")
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 2 })
	eventually(t, "the first replay has ended", settled(p))
	e.publish(2, 0)
	eventually(t, "found", func() bool { return statusOf(p, slot).Foreign != "" })
	expect(t, p, sink, slot+1, e, kvblock.FeedExact)
	var position []byte
	var held map[place]int
	p.Still(slot+1, func(at []byte) { position, held = at, sink.content(slot+1) })
	got := p.Continue(slot, position, true, func() {
		sink.mu.Lock()
		defer sink.mu.Unlock()
		sink.held[slot] = held
	})
	if got != kvevents.ContinuedThere {
		t.Fatalf("Continue() = %v", got)
	}
	e.publish(2, 1)
	if s := expect(t, p, sink, slot, e, kvblock.FeedDegraded); s.Foreign == "" {
		t.Errorf("status = %s", dump(s))
	}
}

// heldLog is a log that tests read while it is written.
type heldLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *heldLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *heldLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// The warning comes after a second comparison, once, whatever the engine publishes then.
func TestAReplaySocketOfAnotherEngineIsLoggedOnce(t *testing.T) {
	t.Parallel()
	e, other := twoEngines(t, 3, 10)
	log, sink := &heldLog{}, newSink()
	c := quick()
	c.Probe = 50 * time.Millisecond
	p := kvevents.New(c, kvevents.Params{Sink: sink, Scope: scope.Logged(slog.New(slog.NewTextHandler(log, nil)))})
	run(t, p, sink)
	p.Add(slot, e.with(other), "a/0")
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
	warned := func() int { return strings.Count(log.String(), "level=WARN") }
	e.publish(2, 0)
	eventually(t, "dropped", func() bool { return statusOf(p, slot).Foreign != "" })
	eventually(t, "warned", func() bool { return warned() == 1 })
	before := statusOf(p, slot).Replays
	eventually(t, "compared again", func() bool {
		e.publish(1, 0) // eventually waits between two looks
		return statusOf(p, slot).Replays > before+3
	})
	if n := warned(); n != 1 || !strings.Contains(log.String(), "rank=a/0") || !strings.Contains(log.String(), "replay="+other.replays) {
		t.Errorf("%d warnings: %s", n, log)
	}
}
