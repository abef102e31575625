package enginestats

import (
	"math"
	"time"
)

// Stats is the last report of a rank's engine.
type Stats struct {
	// At is when the report was received; zero: never.
	At time.Time
	// Running and Waiting count the engine's requests.
	Running, Waiting int
	// KVUsage is the used share of the KV cache, 0 to 1.
	KVUsage float64
	// QueryTokens and HitTokens count the prompt tokens looked up in the prefix cache since the engine
	// began, and those found.
	QueryTokens, HitTokens uint64
	// FetchedTokens counts the prompt tokens that the engine has read from tiers below its GPU or from other engines since it began; Fetches is set
	// where it counts them.
	FetchedTokens uint64
	Fetches       bool
	// PromptTokens and OutputTokens count the tokens computed since the engine began.
	PromptTokens, OutputTokens uint64
	// PrefillSeconds is the time from each request's first step to its first token, summed over requests that have ended since the
	// engine began. Requests that share steps count the same time each. ComputedTokens are the prompt tokens that the same requests
	// did not find in a cache; 0 from engines that do not count them (vLLM before 0.13).
	PrefillSeconds float64
	ComputedTokens uint64
	// Preemptions counts the requests that the engine had to push back since it began.
	Preemptions uint64
	// Sleep is the engine's sleep by its own account.
	Sleep Sleep
	// Adapters are the engine's LoRA adapters; nil from an engine that runs none.
	Adapters *Adapters

	foreign float64
	stale   time.Duration
}

// Adapters are the LoRA adapters of an engine. They never change.
type Adapters struct {
	// Slots is how many different adapters the engine runs at most at once (max_loras).
	Slots int
	// Running are the adapters with requests that are computed. Nil where the metric says it for several ranks together.
	Running []string
}

// Sleep is the state of an engine that can be put to sleep (vLLM's --enable-sleep-mode).
type Sleep uint8

// The states, as vllm:engine_sleep_state names them.
const (
	Awake Sleep = iota
	// WeightsOffloaded: the weights are in the machine's memory, the caches are gone. A call of /wake_up brings the engine back.
	WeightsOffloaded
	// DiscardAll: the weights are gone, too. Only its operator can bring the engine back.
	DiscardAll
)

// Fresh reports whether the statistics are recent enough to be used.
func (s *Stats) Fresh(now time.Time) bool {
	return !s.At.IsZero() && now.Sub(s.At) <= s.stale
}

// Foreign estimates how many of the engine's requests other senders sent. It fades to zero while
// the statistics grow stale.
func (s *Stats) Foreign(now time.Time) float64 {
	if s.foreign == 0 || !s.Fresh(now) {
		return 0
	}
	left := 1 - float64(now.Sub(s.At))/float64(s.stale)
	return s.foreign * math.Min(1, 2*left) // in full for the first half of the time
}

// Senders estimates how many of a rank's requests other senders sent, from report to report. The zero value
// has seen no report. It is not safe for concurrent use.
type Senders struct {
	own     int
	last    time.Time
	foreign float64
}

// Asked notes the requests that this router has on the rank when it asks for a report: requests that have
// ended before the answer arrives may still show in the engine's gauges.
func (f *Senders) Asked(own int) { f.own = max(f.own, own) }

// See returns the report s with the estimate. own is this router's requests on the rank when the report
// arrives, stale the age from which it is ignored.
func (f *Senders) See(s Stats, own int, stale time.Duration) Stats {
	seen := float64(max(0, s.Running+s.Waiting-max(f.own, own)))
	if !f.last.IsZero() {
		seen = damp(f.foreign, seen, s.At.Sub(f.last))
	}
	f.own, f.last, f.foreign = own, s.At, seen
	s.foreign, s.stale = seen, stale
	return s
}

// riseTime is how long a foreign load must last to count for about two thirds. It is longer than
// the usual delay between a request's end here and in the engine's gauges.
const riseTime = 2 * time.Second

// damp moves the estimate towards the newest report: slowly up, because our own
// requests show for a moment as foreign when they end, and quickly down.
func damp(before, seen float64, passed time.Duration) float64 {
	if seen <= before {
		return seen + (before-seen)/4
	}
	part := 1 - math.Exp(-float64(passed)/float64(riseTime))
	return before + (seen-before)*part
}
