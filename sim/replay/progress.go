package replay

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
)

// The defaults of vllm-router's program scheduling, with the coefficients of the modelled engine instead of its own.
const (
	progressEach     = 1.0 // seconds between two looks
	progressBuffer   = 100 // tokens for an answer
	progressWindow   = 100 // samples before an average counts
	progressRounds   = 14  // the longest segment that is protected
	progressMostTTL  = 10.0
	progressLeastTTL = 0.05
	progressKeeps    = 0.15 // of the decode throughput while a prefill runs
	progressForce    = 300.0
	progressLeast    = 30.0 // bounds of the wait after which a session is resumed
	progressHeadroom = 1.2  // contexts that another engine must have more of
	progressPrograms = 64   // with a place on one engine
)

// window is the mean of the last samples.
type window struct{ list []float64 }

func (w *window) add(v float64) {
	if w.list = append(w.list, v); len(w.list) > progressWindow {
		w.list = w.list[1:]
	}
}

func (w *window) full() bool { return len(w.list) >= progressWindow }

func (w *window) mean() float64 { return mean(w.list) }

// segment is a session's time with a place.
type segment struct {
	began          float64
	rounds         int
	shared, before float64 // tokens of other sessions, and of its own last context
	force          float64 // when it is resumed in any case
	ttl            int     // counts the times that were set, so that a former one has no effect
	yielded        bool
}

// progress is the program scheduling of vllm-router, with one queue for all engines and the engines' capacity known.
type progress struct {
	agents
	profile  *Profile
	segments map[*agent]*segment
	queue    []*agent
	waits    []int // requests in each engine's own queue, as polled
	// growth, answers, decodes and rounds are of completed calls; gaps are between calls.
	growth, answers, decodes, rounds, gaps window
	ends                                   []float64 // of the last calls
}

func newProgress(s *sim, profile *Profile) *progress {
	p := &progress{agents: newAgents(s), profile: profile, segments: map[*agent]*segment{}, waits: make([]int, len(s.engines))}
	p.each(progressEach, func() {
		for e, en := range s.engines {
			s.catchUp(en)
			p.waits[e] = len(en.machine.Waiting())
		}
		for e := range p.capacity {
			p.repair(e)
		}
		p.resume()
	})
	return p
}

// private is the memory that an agent needs.
func (p *progress) private(a *agent) float64 {
	return math.Max(0, a.tokens-p.segments[a].shared) + progressBuffer
}

// active are the agents with a place on an engine.
func (p *progress) active(engine int) []*agent {
	var list []*agent
	for _, a := range p.of {
		if a != nil && a.home == engine {
			list = append(list, a)
		}
	}
	return list
}

func (p *progress) free(active []*agent, engine int) float64 {
	left := p.capacity[engine]
	for _, a := range active {
		left -= p.private(a)
	}
	return left
}

// target is how many rounds of growth are reserved.
func (p *progress) target() float64 {
	if !p.rounds.full() || !p.growth.full() {
		return 0
	}
	return math.Min(progressRounds, math.Max(1, math.Ceil(2*p.rounds.mean())))
}

// fits reports whether an agent may have a place on an engine: now, and with the growth of all that are there, or when the larger batch
// is worth more than the prefills that it costs.
func (p *progress) fits(a *agent, engine int) bool {
	active := p.active(engine)
	free, needs := p.free(active, engine), p.private(a)
	if p.waits[engine] >= 1 || len(active) >= progressPrograms || free < needs {
		return false
	}
	target := p.target()
	remaining := target
	for _, other := range active {
		remaining += math.Max(0, target-float64(p.segments[other].rounds))
	}
	growth := p.growth.mean()
	return free >= needs+math.Ceil(growth*remaining) || p.gain(a, active) >= p.impact(a)+p.loss(active, target, free/growth, (free-needs)/growth)
}

// gain is the time that answers win in a batch with one more.
func (p *progress) gain(a *agent, active []*agent) float64 {
	rate := func(n, tokens float64) float64 {
		t := &p.profile.Timing
		return n / (t.Base.Seconds() + t.PerSequence.Seconds()*n + t.PerContextToken.Seconds()*tokens)
	}
	n, tokens := 0.0, 0.0
	for _, other := range active {
		if other.running > 0 {
			n, tokens = n+1, tokens+other.tokens
		}
	}
	if n == 0 {
		return math.Inf(1)
	}
	return p.decodes.mean() * math.Max(0, rate(n+1, tokens+a.tokens)/rate(n, tokens)-1)
}

// loss is the cost of the rounds that those with a place lose.
func (p *progress) loss(active []*agent, target, before, after float64) float64 {
	if after <= 0 {
		return math.Inf(1)
	}
	var costs []float64
	for _, other := range active {
		if float64(p.segments[other].rounds) < target {
			costs = append(costs, p.impact(other))
		}
	}
	return (before - after) / after * mean(costs)
}

// impact is the cost in seconds of a context that is gone.
func (p *progress) impact(a *agent) float64 {
	t := p.profile.Timing
	return t.Prefill(int(p.private(a)), 0) * (2 - progressKeeps)
}

func (p *progress) arrive(call int) {
	a := p.come(call)
	s := p.segments[a]
	if s == nil {
		s = &segment{before: math.NaN()}
		p.segments[a] = s
		h := fnv.New64a()
		_, _ = fmt.Fprint(h, p.sim.trace.Calls[call].Session) // never fails
		a.last = int(h.Sum64() % uint64(len(p.capacity)))
		p.share(a, call)
	} else if a.running == 0 {
		p.gaps.add(math.Max(1e-3, p.sim.now-a.returned))
	}
	if s.ttl++; a.home >= 0 {
		p.send(a)
		return
	}
	if !slices.Contains(p.queue, a) {
		older := len(p.queue) > 0
		s.force = p.sim.now + p.timeout()
		if p.queue = append(p.queue, a); older {
			return
		}
	}
	p.resume()
}

// share notes which part of a session's first prompt its engine holds: it belongs to others.
func (p *progress) share(a *agent, call int) {
	c := &p.sim.trace.Calls[call]
	keys := p.sim.trace.hashes[call]
	p.segments[a].shared = float64(p.sim.engines[a.last].machine.Pool().Match(keys[:min(len(keys), c.In/p.sim.trace.block)]) * p.sim.trace.block)
}

// timeout is the wait after which a session is resumed in any case.
func (p *progress) timeout() float64 {
	target := p.target()
	if target == 0 || len(p.ends) < progressWindow {
		return progressForce
	}
	rate := float64(len(p.ends)) / math.Max(1e-3, p.sim.now-p.ends[0])
	rounds := target * float64(len(p.queue))
	for _, a := range p.of {
		if a != nil && a.home >= 0 {
			least := 0.0
			if a.running > 0 {
				least = 1
			}
			rounds += math.Max(least, target-float64(p.segments[a].rounds))
		}
	}
	return min(progressForce, max(progressLeast, 3*rounds/rate))
}

// resume gives places to sessions with calls: those that waited too long, then those that came back last, on the engine they had. Then
// the first that came, on another engine.
func (p *progress) resume() {
	p.queue = slices.DeleteFunc(p.queue, func(a *agent) bool { return len(a.waiting) == 0 })
	forced := func(a *agent) bool { return p.segments[a].force <= p.sim.now }
	rank := func(a *agent) int {
		switch {
		case forced(a):
			return 0
		case p.segments[a].yielded:
			return 2
		}
		return 1
	}
	local := slices.Clone(p.queue)
	slices.SortStableFunc(local, func(a, b *agent) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.returned, a.returned))
	})
	for _, a := range local {
		if forced(a) || p.fits(a, a.last) {
			p.admit(a, a.last)
		}
	}
	for _, a := range slices.Clone(p.queue) {
		from := p.free(p.active(a.last), a.last)
		best, most := -1, from+progressHeadroom*p.private(a)
		for e := range p.capacity {
			if free := p.free(p.active(e), e); e != a.last && free >= most && p.fits(a, e) {
				best, most = e, free
			}
		}
		if best >= 0 {
			p.admit(a, best)
		}
	}
}

func (p *progress) admit(a *agent, engine int) {
	p.queue = slices.DeleteFunc(p.queue, func(b *agent) bool { return a == b })
	s := p.segments[a]
	s.began, s.rounds, s.yielded = p.sim.now, 0, false
	p.place(a, engine)
}

// repair has sessions lose their place at the end of their call where the answers in flight do not fit, the longest segments first.
func (p *progress) repair(engine int) {
	active := p.active(engine)
	answer := math.Ceil(p.answers.mean())
	deficit := -p.free(active, engine)
	var victims []*agent
	for _, a := range active {
		switch {
		case a.marked:
			deficit -= p.private(a) + answer
		case a.running > 0:
			deficit += answer
			victims = append(victims, a)
		}
	}
	sortBy(victims, func(a *agent) float64 { return p.segments[a].began })
	for _, a := range victims {
		if deficit <= 0 {
			return
		}
		a.marked = true
		deficit -= p.private(a) + answer
	}
}

// ttl is the time after a call for which a session keeps its place: the one of the greatest expected use, by the log-normal
// distribution of the gaps.
func (p *progress) ttl(a *agent) float64 {
	if !p.gaps.full() {
		return 0
	}
	logs := make([]float64, len(p.gaps.list))
	for i, v := range p.gaps.list {
		logs[i] = math.Log(v)
	}
	mu, variance := mean(logs), 0.0
	for _, v := range logs {
		variance += (v - mu) * (v - mu) / float64(len(logs))
	}
	sigma := math.Sqrt(math.Max(1e-4, variance))
	below := func(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }
	best, use, impact := 0.0, 0.0, p.impact(a)
	for i := range 32 {
		d := progressLeastTTL * math.Pow(progressMostTTL/progressLeastTTL, float64(i)/31)
		z := (math.Log(d) - mu) / sigma
		f := below(z)
		// The mean gap up to d of a log-normal distribution.
		if u := impact*f - math.Exp(mu+sigma*sigma/2)*below(z-sigma) - d*(1-f); u > use {
			best, use = d, u
		}
	}
	return best
}

func (p *progress) firstToken(*attempt) {}

func (p *progress) progress(*attempt, int) {}

func (p *progress) finished(at *attempt) {
	a, over := p.end(at)
	s := p.segments[a]
	if s.rounds++; !math.IsNaN(s.before) && a.tokens > s.before {
		p.growth.add(a.tokens - s.before)
	}
	s.before = a.tokens
	p.answers.add(float64(p.sim.trace.Calls[at.call].Out))
	p.decodes.add(p.sim.now - p.sim.first[at.call])
	p.rounds.add(float64(s.rounds))
	if p.ends = append(p.ends, p.sim.now); len(p.ends) > progressWindow {
		p.ends = p.ends[1:]
	}
	s.ttl++
	switch waiter := slices.ContainsFunc(p.queue, func(b *agent) bool { return b.last == at.engine }); {
	case over || a.running > 0:
	case a.marked:
		a.pause()
	case waiter && s.rounds >= progressRounds:
		a.pause()
		s.yielded = true
	default:
		p.keep(a, s)
	}
	p.resume()
}

// keep has a session lose its place unless it returns in time.
func (p *progress) keep(a *agent, s *segment) {
	d, armed := p.ttl(a), s.ttl
	if d == 0 {
		a.pause()
		return
	}
	p.sim.after(d, func() {
		if s.ttl == armed && a.home >= 0 && a.running == 0 {
			a.pause()
			p.resume()
		}
	})
}

func (p *progress) changed(int, []kvEvent) {}

// sortBy sorts by a key; equal ones keep their order.
func sortBy[T any](list []T, key func(T) float64) {
	slices.SortStableFunc(list, func(a, b T) int { return cmp.Compare(key(a), key(b)) })
}
