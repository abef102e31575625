package replay

import (
	"math"
	"slices"
)

// Programs are the figures of a closed loop's sessions, each from the arrival of its first call to the last token of its last one.
type Programs struct {
	// PerHour is the sessions that ended per hour, over the whole run.
	PerHour float64 `json:"per_hour"`
	// Mean, P50 and P99 are their completion times in seconds.
	Mean float64 `json:"completion_mean_s"`
	P50  float64 `json:"completion_p50_s"`
	P99  float64 `json:"completion_p99_s"`
	// Wait is the longest time that a session's first call waited for its first token, Waited the mean of these times.
	Wait   float64 `json:"first_call_ttft_max_s"`
	Waited float64 `json:"first_call_ttft_mean_s"`
}

// ramp is the time in seconds between the starts of the first sessions of a load by sessions at once.
const ramp = 1.0

// atOnce is a load by sessions at once: when one ends, the next of the trace starts.
type atOnce struct {
	// first are the first calls of the sessions that have not started, in the trace's order.
	first []int
}

// limit replaces the arrivals of the sessions by a load of n sessions at once.
func (s *sim) limit(n int) {
	s.events, s.atOnce = nil, &atOnce{}
	for i := range s.trace.Calls {
		if s.trace.Calls[i].Prev < 0 {
			s.atOnce.first = append(s.atOnce.first, i)
		}
	}
	for i := range min(n, len(s.atOnce.first)) {
		s.startSession(float64(i) * ramp)
	}
}

// startSession starts the next session of a load by sessions at once, if there is one.
func (s *sim) startSession(at float64) {
	if a := s.atOnce; a != nil && len(a.first) > 0 {
		s.schedule(event{at: at, kind: eventArrival, n: a.first[0]})
		a.first = a.first[1:]
	}
}

// resident is the mean length in tokens of the contexts that the calls leave in a cache.
func (t *Trace) resident() float64 {
	var sum float64
	for i := range t.Calls {
		sum += float64(t.Calls[i].In + t.Calls[i].Out)
	}
	return sum / float64(max(1, len(t.Calls)))
}

// fitting is the number of sessions with contexts that take the given share of the fleet's memory.
func (o *Options) fitting(share float64) int {
	memory := float64(o.Replicas * o.Profile.CacheTokens)
	return max(1, int(math.Round(share*memory/o.Trace.resident())))
}

// programs reads the figures of the sessions; nil for an open loop.
func (s *sim) programs() *Programs {
	if !s.trace.Closed {
		return nil
	}
	p := &Programs{}
	var completions []float64
	end, sessions := 0.0, 0
	began := map[int]float64{}
	for i := range s.trace.Calls {
		c := &s.trace.Calls[i]
		if c.Prev < 0 {
			sessions++
			began[c.Session] = s.arrived[i]
			if wait := s.first[i] - s.arrived[i]; !math.IsNaN(wait) {
				p.Waited += wait
				p.Wait = max(p.Wait, wait)
			}
		}
		if math.IsNaN(s.done[i]) {
			continue
		}
		end = max(end, s.done[i])
		if len(s.next[i]) == 0 {
			completions = append(completions, s.done[i]-began[c.Session])
		}
	}
	if len(completions) == 0 || end == 0 {
		return p
	}
	slices.Sort(completions)
	p.PerHour = 3600 * float64(len(completions)) / end
	p.Waited /= float64(sessions)
	p.Mean, p.P50, p.P99 = mean(completions), quantile(completions, 0.5), quantile(completions, 0.99)
	return p
}

// add adds a share of other, for means over several runs.
func (p *Programs) add(other *Programs, share float64) {
	p.PerHour += share * other.PerHour
	p.Mean += share * other.Mean
	p.P50 += share * other.P50
	p.P99 += share * other.P99
	p.Wait += share * other.Wait
	p.Waited += share * other.Waited
}
