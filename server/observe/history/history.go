package history

import (
	"maps"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// The spans of the history: five minutes by the second and an hour in steps of fifteen.
const (
	historySeconds = 300
	hourStep       = 15 // seconds
	hourSteps      = 3600 / hourStep
)

// Step has the counts of some seconds.
type Step struct {
	// T is where the step begins, in seconds since 1970, Seconds how long it is: less for a router that is younger.
	T       int64
	Seconds int
	// Requests ended after a replica was chosen, Failed of them in a failure that their clients got.
	Requests, Failed int
	// Attempts ended on a replica, Retries of them were repeated or continued on another one. HandOvers are bookings that went to
	// another decider or another choice; they are neither.
	Attempts, Retries, HandOvers int
	// Continued are the streams among them that another replica continued.
	Continued int
	// Unserved requests were answered with an error before any replica was chosen, by its reason; nil when there were none.
	Unserved map[string]int
	// PromptTokens and CachedTokens are the engines' own counts, of answers that gave both, and the router's of
	// streams that gave none; CountedTokens is how many of PromptTokens are of the latter.
	PromptTokens, CachedTokens, CountedTokens int
	// P50 and P99 are times to the first token in milliseconds; 0 when none was seen.
	P50, P99 float64
	// TPOT50 and TPOT99 are times of a token after the first, one for each answer that ended, in milliseconds; 0 when none is known.
	TPOT50, TPOT99 float64
	// Held requests had waited in the hold queue when they were assigned to a replica, HeldMost of them the longest.
	Held     int
	HeldMost time.Duration
	// Regret is the shadow policy's mean regret in milliseconds; Agreed the share of its decisions
	// that were the served ones, -1 when none ran.
	Regret, Agreed float64
}

// second is a Step while it is counted.
type second struct {
	Step
	ttft    quantiles // of times to the first token
	tpot    quantiles // of times of a token after it
	shadows int
	agreed  int
	regret  float64
}

// ring holds the last steps, each of so many seconds.
type ring struct {
	step  int64
	steps []second
}

func newRing(step int64, n int) ring { return ring{step: step, steps: make([]second, n)} }

// at is the step that second now lies in.
func (r *ring) at(now int64) *second {
	t := now - now%r.step
	s := &r.steps[t/r.step%int64(len(r.steps))]
	if s.T != t {
		*s = second{Step: Step{T: t, Seconds: int(r.step)}}
	}
	return s
}

// known calls do with each step up to the step of now, oldest first; steps in which
// nothing was counted are left out.
func (r *ring) known(now int64, do func(*second)) {
	last := now - now%r.step
	for t := last - int64(len(r.steps)-1)*r.step; t <= last; t += r.step {
		if s := &r.steps[t/r.step%int64(len(r.steps))]; s.T == t {
			do(s)
		}
	}
}

// since are the steps that begin at from or later, oldest first.
func (r *ring) since(from, now int64) []Step {
	var list []Step
	r.known(now, func(s *second) {
		if s.T >= from {
			list = append(list, s.done())
		}
	})
	return list
}

// History counts outcomes by time. Make one with New.
type History struct {
	mu      sync.Mutex
	began   int64 // guarded by mu: the first second in which something was counted
	seconds ring  // guarded by mu
	hour    ring  // guarded by mu
}

// New makes an empty History; it takes 600 kB.
func New() *History {
	return &History{seconds: newRing(1, historySeconds), hour: newRing(hourStep, hourSteps)}
}

// Unserved counts a request that was answered with an error before any replica was chosen.
func (h *History) Unserved(reason string) {
	h.count(time.Now(), func(s *second) { s.unserve(reason, 1) })
}

// Served counts a request that ended after a replica was chosen for it; failed says that its client got a failure.
func (h *History) Served(failed bool) {
	h.count(time.Now(), func(s *second) { s.serve(failed) })
}

// Retried counts an attempt that is repeated or continued on another replica.
func (h *History) Retried() {
	h.count(time.Now(), func(s *second) { s.Retries++ })
}

// Outcome counts an ended attempt. The request of an external caller ends with it, unless the caller tries another replica; requests that
// this router sends are counted by Served and Retried. Attempts of another router's requests are left to that router.
func (h *History) Outcome(o decision.Outcome) {
	if o.End == decision.EndHandedOver {
		h.count(time.Now(), func(s *second) { s.HandOvers++ })
		return
	}
	if o.AskedBy != "" {
		return
	}
	h.count(time.Now(), func(s *second) {
		s.Attempts++
		if o.End == decision.EndResumed {
			s.Continued++
		}
		switch again := o.End == decision.EndMoved || o.End == decision.EndResumed; {
		case !o.External:
		case again:
			s.Retries++
		default:
			s.serve(o.End == decision.EndFailed || o.End == decision.EndPoisoned)
		}
		if o.PromptTokens > 0 && o.CachedTokens >= 0 {
			s.PromptTokens += o.PromptTokens
			s.CachedTokens += o.CachedTokens
			if o.Counted {
				s.CountedTokens += o.PromptTokens
			}
		}
		if o.TTFT > 0 {
			s.ttft.add(o.TTFT)
		}
		if o.TTFT > 0 && o.End == decision.EndCompleted && o.OutputTokens > 1 {
			s.tpot.add((o.Duration - o.TTFT) / time.Duration(o.OutputTokens-1))
		}
	})
}

// Decision counts how long a request was held, and the shadow policy's choice.
func (h *History) Decision(d *decision.Decision) {
	held := d.Held > 0 && !d.DryRun
	if d.Shadow == nil && !held {
		return
	}
	h.count(time.Now(), func(s *second) {
		if held {
			s.Held++
			s.HeldMost = max(s.HeldMost, d.Held)
		}
		if d.Shadow == nil {
			return
		}
		s.shadows++
		s.regret += d.Shadow.Regret
		if d.Shadow.Agrees {
			s.agreed++
		}
	})
}

func (h *History) count(now time.Time, do func(*second)) {
	t := now.Unix()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.began == 0 {
		h.began = t
	}
	do(h.seconds.at(t))
	do(h.hour.at(t))
}

// Since returns the steps that begin at from or later, oldest first: seconds of the last five minutes, or coarse ones of the
// last hour. Steps in which nothing was counted are left out.
func (h *History) Since(from time.Time, coarse bool) []Step {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &h.seconds
	if coarse {
		r = &h.hour
	}
	return r.since(from.Unix(), time.Now().Unix())
}

// Minute sums up the sixty seconds before the present one.
func (h *History) Minute() Step {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := time.Now().Unix()
	sum := second{Step: Step{T: t - 60}}
	h.seconds.known(t-1, func(s *second) {
		if s.T >= t-60 {
			sum.add(s)
		}
	})
	if h.began > 0 {
		sum.Seconds = int(min(60, max(0, t-h.began)))
	}
	return sum.done()
}

// add adds the counts of o.
func (s *second) add(o *second) {
	s.Requests += o.Requests
	s.Failed += o.Failed
	s.Attempts += o.Attempts
	s.Retries += o.Retries
	s.HandOvers += o.HandOvers
	s.Continued += o.Continued
	for reason, n := range o.Unserved {
		s.unserve(reason, n)
	}
	s.PromptTokens += o.PromptTokens
	s.CachedTokens += o.CachedTokens
	s.CountedTokens += o.CountedTokens
	s.shadows += o.shadows
	s.agreed += o.agreed
	s.regret += o.regret
	s.ttft.join(&o.ttft)
	s.tpot.join(&o.tpot)
	s.Held += o.Held
	s.HeldMost = max(s.HeldMost, o.HeldMost)
}

func (s *second) serve(failed bool) {
	s.Requests++
	if failed {
		s.Failed++
	}
}

func (s *second) unserve(reason string, n int) {
	if s.Unserved == nil {
		s.Unserved = map[string]int{}
	}
	s.Unserved[reason] += n
}

// done is the step with its quantiles and means.
func (s *second) done() Step {
	out := s.Step
	out.Unserved = maps.Clone(out.Unserved)
	out.P50, out.P99 = s.ttft.both()
	out.TPOT50, out.TPOT99 = s.tpot.both()
	out.Agreed = -1
	if s.shadows > 0 {
		out.Agreed = float64(s.agreed) / float64(s.shadows)
		out.Regret = 1000 * s.regret / float64(s.shadows)
	}
	return out
}
