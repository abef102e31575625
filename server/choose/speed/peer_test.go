package speed

import (
	"math"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// serve shows the rank n requests that an engine of this rate answers, from now on.
func serve(rank *Rank, now time.Time, n int, rate float64) time.Time {
	var e Entry
	for range n {
		rank.Booked(&e, Work{Tokens: 8000}, now, Decodes{})
		now = now.Add(time.Duration(8000 / rate * 1e9))
		rank.FirstToken(&e, now, Decodes{})
		now = now.Add(100 * time.Millisecond)
	}
	return now
}

func TestAPeersModelIsABeginning(t *testing.T) {
	now := time.Unix(1000, 0)
	other := new(kind).newRank()
	serve(other, now, 80, 40_000)
	learned, own := other.Learned()
	if !own {
		t.Fatal("the peer has learned nothing")
	}
	rank := new(kind).newRank()
	if _, own := rank.Learned(); own {
		t.Error("a new rank says that it has learned")
	}
	rank.Import(learned, now)
	if m, own := rank.Learned(); own || m.Token != learned.Token || m.Bend != learned.Bend || m.Base != learned.Base || m.Overhead != learned.Overhead || m.Source != decision.SpeedLearned {
		t.Errorf("after the import %+v (own %v), want %+v", m, own, learned)
	}
	// The same engine: nothing changes when this router begins to learn.
	now = serve(rank, now, 3, 40_000)
	if m, own := rank.Learned(); !own || math.Abs(m.Token/learned.Token-1) > 0.1 || m.Samples <= learned.Samples {
		t.Errorf("after three samples %.0f tokens/s of %d samples (own %v), want %.0f", 1/m.Token, m.Samples, own, 1/learned.Token)
	}
	// While it learns, peers have no say.
	wrong := learned
	wrong.Token *= 5
	rank.Import(wrong, now.Add(time.Second))
	if m := rank.Model(); math.Abs(m.Token/learned.Token-1) > 0.1 {
		t.Errorf("a peer replaced what is learned here: %.0f tokens/s", 1/m.Token)
	}
	// The engine is another now: own samples have the last word.
	now = serve(rank, now, 60, 10_000)
	if m := rank.Model(); math.Abs(1/m.Token/10_000-1) > 0.15 {
		t.Errorf("after 60 samples at 10,000 tokens/s the rate is %.0f", 1/m.Token)
	}
	// The peer's Model from before is no news, however long nothing was learned here.
	rank.Import(learned, now.Add(time.Hour))
	if m, own := rank.Learned(); !own || math.Abs(1/m.Token/10_000-1) > 0.15 {
		t.Errorf("an old import came back: %.0f tokens/s", 1/m.Token)
	}
	// Another router has decided since.
	learned.Token *= 1.1
	rank.Import(learned, now.Add(time.Hour))
	if m, own := rank.Learned(); own || m.Token != learned.Token {
		t.Errorf("an hour without samples, and the peer's %.0f tokens/s are %.0f (own %v)", 1/learned.Token, 1/m.Token, own)
	}
}

func TestAPeersNonsenseIsBounded(t *testing.T) {
	rank := new(kind).newRank()
	rank.Import(Model{Token: 1e9, Bend: 1e-9, Overhead: 1, Base: 1, Load: 1, Samples: math.MaxInt, Steps: 1}, time.Unix(1000, 0))
	m := rank.Model()
	if m.Token > 0.06 || m.Bend < 1 || m.Samples > 1000 {
		t.Errorf("%+v", m)
	}
}
