package replay

import (
	"time"

	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

// Lie is what is wrong with a modelled replica. The zero value: nothing.
type Lie struct {
	// Instant, above zero, gives the first token at once, whatever the prompt, and so many tokens per second after it.
	Instant float64
	// SlowDecode, above zero, is how many times longer its decode steps take; its prefill is as fast as that of others.
	SlowDecode float64
	// FalseBlocks keeps no block for later requests and does not say so: no answer shows anything as cached.
	FalseBlocks bool
}

// change makes cfg that of a replica with the lie.
func (l Lie) change(cfg *enginemodel.Config) {
	if l.SlowDecode > 0 {
		longer := func(d *time.Duration) { *d = time.Duration(float64(*d) * l.SlowDecode) }
		longer(&cfg.Timing.Base)
		longer(&cfg.Timing.PerSequence)
		longer(&cfg.Timing.PerContextToken)
	}
	cfg.NoCaching = cfg.NoCaching || l.FalseBlocks
}

// lied plays a call on a replica that gives the first token at once and rate tokens per second after it.
func (s *sim) lied(a *attempt, rate float64) {
	a.started, a.firstAt = true, s.now
	s.begun(a)
	out := s.trace.Calls[a.call].Out
	for n := progressStep; n < out; n += progressStep {
		s.after(float64(n)/rate, func() { s.router.progress(a, n) })
	}
	s.after(float64(max(0, out-1))/rate, func() { s.finished(a) })
}
