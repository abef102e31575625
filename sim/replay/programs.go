package replay

import (
	"math"
	"slices"
)

// Programs are the figures of a closed loop's programs, each from the arrival of its first call to the last token of its last one: an
// agent's session, with the sessions of its subagents.
type Programs struct {
	// PerHour is the programs that ended per hour, over the whole run; Makespan is how long that took in seconds.
	PerHour  float64 `json:"per_hour"`
	Makespan float64 `json:"makespan_s"`
	// Mean, P50 and P99 are their completion times in seconds.
	Mean float64 `json:"completion_mean_s"`
	P50  float64 `json:"completion_p50_s"`
	P99  float64 `json:"completion_p99_s"`
	// Wait is the longest time that a program's first call waited for its first token, Waited the mean of these times.
	Wait   float64 `json:"first_call_ttft_max_s"`
	Waited float64 `json:"first_call_ttft_mean_s"`
	// WaitedLong is the mean of the times of more than 10 seconds, 0 for none: of the programs that had to wait before they began.
	WaitedLong float64 `json:"first_call_ttft_waited_mean_s"`
	// Branches are the times to the first tokens of the calls that start subagents, as far as they come after the first tenth of the calls; nil where there
	// are none.
	Branches *Quantiles `json:"branch_ttft_s,omitempty"`
}

// ramp is the time in seconds between the starts of the first programs of a load by programs at once.
const ramp = 1.0

// longWait is the time in seconds from which a program counts as one that waited before it began: few prompts alone take as long.
const longWait = 10.0

// atOnce is a load by programs at once: when one ends, the next of the trace starts.
type atOnce struct {
	// first are the first calls of the programs that have not started, in the trace's order.
	first []int
	// left are the calls of each program that have not ended.
	left map[int]int
	// open are the programs that have not ended.
	open int
	// full is when as many run as the load says, drains when the last one of the trace has started.
	full, drains float64
}

// over reports whether all programs have ended.
func (a *atOnce) over() bool { return a != nil && a.open == 0 }

// ended notes that a call of the program has ended, and reports whether it was the last one.
func (a *atOnce) ended(program int) bool {
	if a == nil || program < 0 {
		return false
	}
	a.left[program]--
	if a.left[program] == 0 {
		a.open--
		return true
	}
	return false
}

// limit replaces the arrivals of the programs by a load of n programs at once.
func (s *sim) limit(n int) {
	a := &atOnce{left: map[int]int{}, full: float64(n-1) * ramp, drains: math.Inf(1)}
	s.events, s.atOnce = nil, a
	for i := range s.trace.Calls {
		if s.trace.isChat(i) {
			s.schedule(event{at: s.trace.Calls[i].At, kind: eventArrival, n: i})
			continue
		}
		s.atOnce.left[s.trace.program(i)]++
		if s.trace.Calls[i].Prev < 0 {
			s.atOnce.first = append(s.atOnce.first, i)
		}
	}
	a.open = len(a.first)
	for i := range min(n, len(s.atOnce.first)) {
		s.startProgram(float64(i) * ramp)
	}
}

// startProgram starts the next program of a load by programs at once, if there is one.
func (s *sim) startProgram(at float64) {
	if a := s.atOnce; a != nil && len(a.first) > 0 {
		s.schedule(event{at: at, kind: eventArrival, n: a.first[0]})
		if a.first = a.first[1:]; len(a.first) == 0 {
			a.drains = at
		}
	}
}

// resident is the mean memory in tokens that a program takes while its calls run: the context that a call leaves in a cache, and for a
// call of a subagent the part of the caller's context that it does not share.
func (t *Trace) resident() float64 {
	var sum float64
	callers, own := t.callers(), t.own()
	for i := range own {
		c := &own[i]
		sum += float64(c.In + c.Out)
		if by := callers[i]; by >= 0 {
			caller := &t.Calls[by]
			sum += float64(caller.In + caller.Out - t.Chunk*common(caller.IDs, c.IDs))
		}
	}
	return sum / float64(max(1, len(own)))
}

// callers gives each call of a subagent the call that started the subagent, -1 for any other call.
func (t *Trace) callers() []int {
	list := make([]int, len(t.Calls))
	for i := range t.Calls {
		list[i] = -1
		if p := t.Calls[i].Prev; p >= 0 {
			if list[i] = list[p]; t.Calls[p].Session != t.Calls[i].Session {
				list[i] = p
			}
		}
	}
	return list
}

// common is the number of chunks with which both lists begin.
func common(a, b []uint64) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// fitting is the number of programs with contexts that take the given share of the fleet's memory.
func (o *Options) fitting(share float64) int { return max(1, int(math.Round(share*o.fits()))) }

// fits is how many programs with their contexts the fleet's memory holds.
func (o *Options) fits() float64 {
	return float64(o.Hardware.cacheTokens(&o.Profile, o.Replicas)) / o.Trace.resident()
}

// programRun is the run of one program.
type programRun struct {
	began, ended float64
	left         int // calls without a last token
}

// programs reads the figures of the programs; nil for an open loop.
func (s *sim) programs() *Programs {
	if !s.trace.Closed {
		return nil
	}
	p := &Programs{}
	var long []float64
	runs := map[int]*programRun{}
	for i := range s.trace.own() {
		run := runs[s.trace.program(i)]
		if run == nil {
			run = &programRun{}
			runs[s.trace.program(i)] = run
		}
		if s.trace.Calls[i].Prev < 0 {
			run.began = s.arrived[i]
			if wait := s.first[i] - s.arrived[i]; !math.IsNaN(wait) {
				p.Waited += wait
				p.Wait = max(p.Wait, wait)
				if wait > longWait {
					long = append(long, wait)
				}
			}
		}
		if math.IsNaN(s.done[i]) {
			run.left++
			continue
		}
		run.ended = max(run.ended, s.done[i])
		p.Makespan = max(p.Makespan, s.done[i])
	}
	var completions []float64
	for _, run := range runs {
		if run.left == 0 {
			completions = append(completions, run.ended-run.began)
		}
	}
	if len(completions) == 0 || p.Makespan == 0 {
		return p
	}
	if list := branchesOf(s); len(list) > 0 {
		q := quantilesOf(list)
		p.Branches = &q
	}
	slices.Sort(completions)
	p.PerHour = 3600 * float64(len(completions)) / p.Makespan
	p.Waited /= float64(len(runs))
	if len(long) > 0 {
		p.WaitedLong = mean(long)
	}
	p.Mean, p.P50, p.P99 = mean(completions), quantile(completions, 0.5), quantile(completions, 0.99)
	return p
}

// add adds a share of other, for means over several runs.
func (p *Programs) add(other *Programs, share float64) {
	p.PerHour += share * other.PerHour
	p.Makespan += share * other.Makespan
	p.Mean += share * other.Mean
	p.P50 += share * other.P50
	p.P99 += share * other.P99
	p.Wait += share * other.Wait
	p.Waited += share * other.Waited
	p.WaitedLong += share * other.WaitedLong
	if b := other.Branches; b != nil {
		if p.Branches == nil {
			p.Branches = &Quantiles{}
		}
		p.Branches.P10, p.Branches.P50, p.Branches.P90 = p.Branches.P10+share*b.P10, p.Branches.P50+share*b.P50, p.Branches.P90+share*b.P90
	}
}

// branchesOf returns the times to the first token of the calls that start subagents, after the first tenth of the calls.
func branchesOf(s *sim) (list []float64) {
	for i := len(s.first) / 10; i < len(s.first); i++ {
		c := &s.trace.Calls[i]
		if c.Prev >= 0 && c.Session != s.trace.Calls[c.Prev].Session && !math.IsNaN(s.first[i]) {
			list = append(list, s.first[i]-s.arrived[i])
		}
	}
	return list
}
