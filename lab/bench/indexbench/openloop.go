package indexbench

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// OpenResult is the open loop: work begins at its own time whether or not the index keeps up.
type OpenResult struct {
	OfferedPerS  float64 `json:"offered_block_ops_per_s"`
	AchievedPerS float64 `json:"achieved_block_ops_per_s"`
	// KeptUp: the last event was applied within 1.1 times the planned duration.
	KeptUp bool `json:"kept_up"`
	// ApplyP99 is how late an event was visible, counted from when it was due.
	ApplyP99 float64 `json:"apply_late_p99_us"`
	// Lookups are timed from when they were due: waiting counts.
	LookupP50 float64 `json:"lookup_p50_ns"`
	LookupP99 float64 `json:"lookup_p99_ns"`
}

// openLoop offers events and lookups at scaled trace times.
func (b *bench) openLoop(ctx context.Context) error {
	if b.OpenRate == 0 {
		return nil
	}
	s, err := b.record(ctx, int(float64(b.OpenRate)*b.Phase.Seconds()))
	if err != nil {
		return err
	}
	planned := time.Duration(float64(s.blocks) / float64(b.OpenRate) * 1e9)
	due := schedule(s, planned)
	var wg sync.WaitGroup
	late := make([]time.Duration, len(s.ops))
	begin := time.Now()
	var took time.Duration
	wg.Go(func() {
		a := applier{ix: b.ix, p: newPlayer(b.fleet.requests)}
		for i := range s.ops {
			waitUntil(begin.Add(due[i]))
			a.apply(s, i)
			late[i] = time.Since(begin.Add(due[i]))
		}
		took = time.Since(begin)
	})
	var asked lap
	wg.Go(func() {
		// As many prompts as the trace has in that time.
		n := 0
		for i, o := range s.ops {
			if i == 0 || o.at != s.ops[i-1].at {
				n++
			}
		}
		var room [256]kvindex.Overlap
		for i := range n {
			at := begin.Add(planned / time.Duration(n) * time.Duration(i))
			waitUntil(at)
			b.ix.Match(room[:0], b.prompts[i%len(b.prompts)])
			asked.each = append(asked.each, time.Since(at))
		}
	})
	wg.Wait()
	slices.Sort(asked.each)
	slices.Sort(late)
	lateness := lap{each: late}
	b.result.Open = &OpenResult{
		OfferedPerS: float64(b.OpenRate), AchievedPerS: float64(s.blocks) / took.Seconds(),
		KeptUp: took.Seconds() <= 1.1*planned.Seconds(), ApplyP99: lateness.at(.99) / 1e3,
		LookupP50: asked.at(.5), LookupP99: asked.at(.99),
	}
	return nil
}

// schedule spreads the events over the planned time by their trace times; a round of the trace
// follows the one before it.
func schedule(s *stream, planned time.Duration) []time.Duration {
	due := make([]time.Duration, len(s.ops))
	base, last := int64(0), s.ops[0].at
	first := last
	at := make([]int64, len(s.ops))
	for i, o := range s.ops {
		if o.at < last { // the next round
			base += last - o.at
		}
		last = o.at
		at[i] = base + o.at - first
	}
	span := max(at[len(at)-1], 1)
	for i := range at {
		due[i] = time.Duration(float64(at[i]) / float64(span) * float64(planned))
	}
	return due
}

// waitUntil sleeps for long waits and yields for short ones, so that work begins on time.
func waitUntil(at time.Time) {
	for {
		switch d := time.Until(at); {
		case d <= 0:
			return
		case d > 300*time.Microsecond:
			time.Sleep(d - 200*time.Microsecond)
		default:
			runtime.Gosched()
		}
	}
}
