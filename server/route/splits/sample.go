package splits

import (
	"math"
	"time"
)

const (
	// octave is how many buckets lie between a time and its double: a time is known to within five percent.
	octave = 8
	// buckets reach from a millisecond to two minutes.
	buckets = 17*octave + 1
)

// times counts times in buckets that grow by the same factor. The zero value is empty.
type times struct {
	counts [buckets]uint32
	seen   uint32
}

func (t *times) add(d time.Duration) {
	ms := max(1, float64(d)/float64(time.Millisecond))
	t.counts[min(buckets-1, int(math.Ceil(octave*math.Log2(ms))))]++
	t.seen++
}

func (t *times) join(o *times) {
	t.seen += o.seen
	for i, n := range o.counts {
		t.counts[i] += n
	}
}

// quantile is the time below which a share of the times lies, as the middle of its bucket; 0 when none was seen.
func (t *times) quantile(share float64) time.Duration {
	if t.seen == 0 {
		return 0
	}
	wanted, counted := max(1, uint32(math.Ceil(share*float64(t.seen)))), uint32(0)
	for i, n := range t.counts {
		if counted += n; counted >= wanted {
			return time.Duration(math.Exp2((float64(i)-.5)/octave) * float64(time.Millisecond))
		}
	}
	return 0
}

// sample is what was counted of some requests.
type sample struct {
	requests, failed uint32
	first, whole     times // to the first token, and to the end of answers that did not fail
	shadows          uint32
	regret           float64 // in seconds, the sum
}

// End is how a request ended.
type End struct {
	// Failed is set when the client got an error.
	Failed bool
	// FirstToken is the time to the first token of a stream; 0 where there was none. Took is the time to the answer's end.
	FirstToken, Took time.Duration
	// Regret is how much slower the shadow policy's choice was predicted to be, in seconds; it counts where HasRegret is set.
	Regret    float64
	HasRegret bool
}

func (s *sample) add(e End) {
	s.requests++
	if e.Failed {
		s.failed++
		return
	}
	if e.FirstToken > 0 {
		s.first.add(e.FirstToken)
	}
	s.whole.add(e.Took)
	if e.HasRegret {
		s.shadows++
		s.regret += e.Regret
	}
}

func (s *sample) join(o *sample) {
	s.requests += o.requests
	s.failed += o.failed
	s.first.join(&o.first)
	s.whole.join(&o.whole)
	s.shadows += o.shadows
	s.regret += o.regret
}

const (
	// lately is the time that comparisons for operators cover, in steps.
	lately      = time.Hour
	latelySteps = 6
	latelyStep  = lately / latelySteps
)

// recent has the samples of the last hour, in steps of ten minutes.
type recent struct {
	at    [latelySteps]int64
	steps [latelySteps]*sample
}

func (r *recent) add(e End, now time.Time) {
	step := now.UnixNano() / int64(latelyStep)
	i := step % latelySteps
	if r.steps[i] == nil || r.at[i] != step {
		r.at[i], r.steps[i] = step, &sample{}
	}
	r.steps[i].add(e)
}

// sum is the sample of the last hour.
func (r *recent) sum(now time.Time) sample {
	var all sample
	step := now.UnixNano() / int64(latelyStep)
	for i, s := range r.steps {
		if s != nil && r.at[i] > step-latelySteps && r.at[i] <= step {
			all.join(s)
		}
	}
	return all
}
