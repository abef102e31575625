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
		t.Errorf("what was counted at the start of requests is set against the time of others: %.0f tokens/s", 1/m.Token)
	}
}

// Unstreamed answers that overlap teach nothing by themselves; the engine counts their prefill.
func TestAnEngineWhoseAnswersComeWholeIsLearnedFromItsCounters(t *testing.T) {
	rank, c := new(kind).newRank(), &Counters{}
	now := time.Unix(1000, 0)
	var tokens uint64
	var prefill float64
	report := func(requests, together int, rate float64) {
		now = now.Add(time.Second)
		tokens += uint64(2000 * requests)
		prefill += float64(requests*together) * 2000 / rate // those of one step each count its whole time
		c.See(rank, &Report{At: now, Uncached: tokens + 30000, Computed: tokens, PrefillSeconds: prefill}, Decodes{})
	}
	for range 30 {
		report(10, 3, 60000)
	}
	if m := rank.Model(); m.Source != decision.SpeedEngine || m.Samples != 0 {
		t.Fatalf("source %s, %d samples", m.Source, m.Samples)
	}
	within(t, "tokens per second of requests that share steps", 1/rank.Model().Token, 20000, 0.05)
	for range 10 {
		report(10, 1, 60000)
	}
	within(t, "tokens per second when they do not", 1/rank.Model().Token, 60000, 0.05)
	for range 10 {
		report(10, 3, 60000)
	}
	within(t, "tokens per second soon after", 1/rank.Model().Token, 40000, 0.5)
	for range 100 {
		report(10, 1, 6000)
	}
	within(t, "tokens per second of an engine that became slow", 1/rank.Model().Token, 6000, 0.05)
	tokens, prefill = 0, 0 // a restart
	for range 100 {
		report(10, 1, 30000)
	}
	within(t, "tokens per second after a restart", 1/rank.Model().Token, 30000, 0.05)
}

// A first request that had to wait for the engine to warm up must not be all that is ever known of its speed.
func TestAWrongSampleIsCorrectedByTheEnginesCounters(t *testing.T) {
	rank, c := new(kind).newRank(), &Counters{}
	now := time.Unix(1000, 0)
	var e Entry
	rank.Booked(&e, Work{Tokens: 3000, Silent: true}, now, Decodes{})
	now = now.Add(10 * time.Second)
	rank.Answered(&e, now, 2, Decodes{Sequences: 1})
	if m := rank.Model(); m.Samples != 1 || 1/m.Token > 2000 {
		t.Fatalf("%d samples, %.0f tokens/s", m.Samples, 1/m.Token)
	}
	for i := range 120 {
		now = now.Add(time.Second)
		c.See(rank, &Report{At: now, Computed: uint64(20000 * (i + 1)), PrefillSeconds: float64(20000*(i+1)) / 25000}, Decodes{})
	}
	within(t, "tokens per second", 1/rank.Model().Token, 25000, 0.3)
}

// Own first tokens are better evidence than the engine's counters.
func TestCountersDoNotCorrectWhatOwnRequestsTeach(t *testing.T) {
	rank, c := new(kind).newRank(), &Counters{}
	now := time.Unix(1000, 0)
	for i := range 60 {
		var e Entry
		rank.Booked(&e, Work{Tokens: 3000}, now, Decodes{})
		now = now.Add(seconds(3000.0 / 10000))
		rank.FirstToken(&e, now, Decodes{})
		now = now.Add(time.Second)
		c.See(rank, &Report{At: now, Computed: uint64(30000 * (i + 1)), PrefillSeconds: float64(i + 1)}, Decodes{})
	}
	within(t, "tokens per second", 1/rank.Model().Token, 10000, 0.1)
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
