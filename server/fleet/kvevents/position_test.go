package kvevents_test

import (
	"bytes"
	"maps"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

// moved is what passes from one router to another: a rank's blocks and the feed's position.
type moved struct {
	held     map[place]int
	position []byte
}

// copyRank takes the image of a rank while its feed stands still.
func copyRank(t *testing.T, p *kvevents.Plane, sink *mapSink) (m moved) {
	t.Helper()
	p.Still(slot, func(position []byte) { m = moved{sink.content(slot), bytes.Clone(position)} })
	return m
}

// give hands an image to another router's feed.
func (m moved) give(p *kvevents.Plane, sink *mapSink, larger bool) kvevents.Continued {
	return p.Continue(slot, m.position, larger, func() {
		sink.mu.Lock()
		defer sink.mu.Unlock()
		sink.held[slot] = maps.Clone(m.held)
	})
}

// follow waits until a feed is exact before there is anything and hears what comes: without that, a short ring has lost the
// first batches before the engine knows of the subscription.
func follow(t *testing.T, p *kvevents.Plane, sink *mapSink, e *engine) {
	t.Helper()
	expect(t, p, sink, slot, e, kvblock.FeedExact)
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
}

// A ring of past batches that is too short for a replay from the start is long enough to continue from a peer's position.
func TestAFeedContinuesWhereAPeersIs(t *testing.T) {
	t.Parallel()
	for name, when := range map[string]func(b *kvevents.Plane, e *engine){
		"before it is added to a running plane": nil,
		"while it follows the ring": func(b *kvevents.Plane, e *engine) {
			b.Add(slot, e.events(), "b")
			eventually(t, "degraded", func() bool { return statusOf(b, slot).State == kvblock.FeedDegraded })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := startEngine(t, zmtp.PublisherParams{Buffer: 8})
			a, sinkA := startPlane(t, quick())
			a.Add(slot, e.events(), "a")
			follow(t, a, sinkA, e)
			for range 40 {
				e.publish(4, 1)
			}
			expect(t, a, sinkA, slot, e, kvblock.FeedExact)
			image := copyRank(t, a, sinkA)
			for range 5 {
				e.publish(3, 2)
			}
			b, sinkB := startPlane(t, quick())
			if when != nil {
				when(b, e)
			} else {
				if got := image.give(b, sinkB, true); got != kvevents.ContinuedNone {
					t.Errorf("without a feed the position is %v", got)
				}
				b.Add(slot, e.events(), "b")
			}
			if got := image.give(b, sinkB, true); got != kvevents.ContinuedThere {
				t.Fatalf("the position is %v", got)
			}
			expect(t, b, sinkB, slot, e, kvblock.FeedExact)
			eventually(t, "both are subscribed", func() bool { return e.pub.Subscriptions() == 2 }) // a replay may have made it exact before
			for range 20 {
				e.publish(3, 2)
			}
			s := expect(t, b, sinkB, slot, e, kvblock.FeedExact)
			if s.Restarts != 0 {
				t.Errorf("restarts: %s", dump(s))
			}
			if got := image.give(b, sinkB, true); got != kvevents.ContinuedHere {
				t.Errorf("an exact feed takes an older position: %v", got)
			}
			expect(t, b, sinkB, slot, e, kvblock.FeedExact)
		})
	}
}

// Batches that wait in a queue are neither lost nor applied twice.
func TestAFeedContinuesUnderLoad(t *testing.T) {
	t.Parallel()
	for _, replay := range []bool{true, false} {
		e := startEngine(t, zmtp.PublisherParams{Buffer: 10_000})
		events := e.events()
		if !replay {
			events.Replay = ""
		}
		a, sinkA := startPlane(t, quick())
		a.Add(slot, events, "a")
		eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
		e.publish(3, 1)
		expect(t, a, sinkA, slot, e, kvblock.FeedExact)
		b, sinkB := startPlane(t, quick())
		b.Add(slot, events, "b")
		eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 2 })
		for i := range 300 {
			e.publish(3, 1)
			if i == 150 {
				image := copyRank(t, a, sinkA)
				for range 30 {
					e.publish(2, 2)
				}
				image.give(b, sinkB, true) // whichever of the two is ahead
			}
		}
		state := kvblock.FeedExact
		if s := statusOf(b, slot); !replay && s.Resets > 0 {
			t.Errorf("without replays: %s", dump(s))
		}
		if replay {
			expect(t, b, sinkB, slot, e, state)
		}
	}
}

// A feed that waits for a position loses nothing when none comes.
func TestFirstReplaysMayBeDelayed(t *testing.T) {
	t.Parallel()
	e := startEngine(t, zmtp.PublisherParams{Buffer: 100})
	e.publish(4, 1)
	p, sink := startPlane(t, quick())
	p.DelayFirstReplays(time.Now().Add(time.Hour))
	p.Add(slot, e.events(), "a")
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
	e.publish(4, 1)
	e.pub.Disconnect()
	eventually(t, "subscribed again", func() bool { return e.pub.Subscriptions() == 1 })
	e.publish(4, 1)
	time.Sleep(50 * time.Millisecond) // nothing may happen
	if s := statusOf(p, slot); s.State != kvblock.FeedCold || s.Batches != 0 {
		t.Errorf("a feed that waits: %s", dump(s))
	}
	p.DelayFirstReplays(time.Time{})
	expect(t, p, sink, slot, e, kvblock.FeedExact)
}

func TestAnEngineThatRestartedSinceIsReadFromTheStart(t *testing.T) {
	t.Parallel()
	e := startEngine(t, zmtp.PublisherParams{Buffer: 100})
	a, sinkA := startPlane(t, quick())
	a.Add(slot, e.events(), "a")
	follow(t, a, sinkA, e)
	for range 5 {
		e.publish(4, 1)
	}
	expect(t, a, sinkA, slot, e, kvblock.FeedExact)
	image := copyRank(t, a, sinkA)
	e.restart()
	for range 9 { // its numbering is past the position
		e.publish(2, 0)
	}
	b, sinkB := startPlane(t, quick())
	b.Add(slot, e.events(), "b")
	image.give(b, sinkB, true)
	expect(t, b, sinkB, slot, e, kvblock.FeedExact)
}

func TestAPositionThatTheRingNoLongerHolds(t *testing.T) {
	t.Parallel()
	e := startEngine(t, zmtp.PublisherParams{Buffer: 4})
	a, sinkA := startPlane(t, quick())
	a.Add(slot, e.events(), "a")
	follow(t, a, sinkA, e)
	e.publish(4, 1)
	expect(t, a, sinkA, slot, e, kvblock.FeedExact)
	image := copyRank(t, a, sinkA)
	for range 20 {
		e.publish(4, 1)
	}
	b, sinkB := startPlane(t, quick())
	b.Add(slot, e.events(), "b")
	image.give(b, sinkB, true)
	eventually(t, "degraded", func() bool { return sinkB.state(slot) == kvblock.FeedDegraded && statusOf(b, slot).Next == 21 })
	for p := range sinkB.content(slot) {
		if _, held := image.held[p]; held {
			t.Errorf("%v is from before the hole", p)
		}
	}
}

func TestOddPositionsAreIgnored(t *testing.T) {
	t.Parallel()
	e := startEngine(t, zmtp.PublisherParams{Buffer: 100})
	e.publish(4, 1)
	p, sink := startPlane(t, quick())
	p.Still(slot, func(position []byte) {
		if position != nil {
			t.Error("a slot without a feed has a position")
		}
	})
	p.Add(slot, e.events(), "a")
	expect(t, p, sink, slot, e, kvblock.FeedExact)
	whole := copyRank(t, p, sink).position
	for _, odd := range [][]byte{nil, {}, {1}, whole[:len(whole)-20], append([]byte{9}, whole[1:]...), bytes.Repeat([]byte{0xFF}, 100)} {
		if got := (moved{nil, odd}).give(p, sink, true); got != kvevents.ContinuedHere {
			t.Errorf("%x: %v", odd, got)
		}
	}
	expect(t, p, sink, slot, e, kvblock.FeedExact)
}
