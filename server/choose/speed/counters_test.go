package speed

import (
	"math"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

func TestAnEnginesPastIsABeginning(t *testing.T) {
	rank, c := new(kind).newRank(), &Counters{}
	c.See(rank, &Report{At: time.Unix(10, 0), Uncached: 1_000_000, PrefillSeconds: 25}, Decodes{})
	if m := rank.Model(); m.Source != decision.SpeedEngine || math.Abs(1/m.Token/40000-1) > 0.01 {
		t.Errorf("%.0f tokens/s from %s", 1/m.Token, m.Source)
	}
	c.See(rank, &Report{At: time.Unix(11, 0), Uncached: 2_000_000, PrefillSeconds: 26}, Decodes{})
	if m := rank.Model(); math.Abs(1/m.Token/40000-1) > 0.01 {
		t.Errorf("a later report counts as the past: %.0f tokens/s", 1/m.Token)
	}
}

// Several routers in front of one engine learned each other's queues as a slow engine.
func TestAnEngineThatOthersKeepBusyIsLearnedFromItsCounters(t *testing.T) {
	rank, c := new(kind).newRank(), &Counters{}
	for i := range 120 {
		rep := Report{At: time.Unix(int64(10+i), 0), Queued: 3, Foreign: 4, Uncached: uint64(16000 * i)}
		c.See(rank, &rep, Decodes{})
		c.See(rank, &rep, Decodes{}) // seen by another request
	}
	if m := rank.Model(); math.Abs(1/m.Token/16000-1) > 0.15 || m.Source != decision.SpeedLearned {
		t.Errorf("%.0f tokens/s (%s), want 16,000", 1/m.Token, m.Source)
	}
	idle := new(kind).newRank()
	c = &Counters{}
	for i := range 120 {
		c.See(idle, &Report{At: time.Unix(int64(10+i), 0), Queued: i % 2, Foreign: 4, Uncached: uint64(160 * i)}, Decodes{})
		c.See(idle, &Report{At: time.Unix(int64(10+i), 5), Queued: 3, Uncached: uint64(160 * i)}, Decodes{})
	}
	if m := idle.Model(); m.Samples != 0 {
		t.Errorf("an engine that was idle at times taught %.0f tokens/s", 1/m.Token)
	}
}
