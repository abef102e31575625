package replay

import (
	"math"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Rules of other routers for programs, which the player alone knows: they decide for sessions, not for calls, and have no index of
// what ranks hold. docs/agents.md says which version of which program each is, and how the rule is read.
const (
	// ThunderAgent pauses sessions between calls when a rank's contexts outgrow its memory.
	ThunderAgent decision.Policy = "thunderagent"
	// ProgressTTL is the program scheduling of vllm-router: a session keeps its place for a learned time after a call.
	ProgressTTL decision.Policy = "progress-ttl"
)

// ProgramRules lists them.
func ProgramRules() []decision.Policy { return []decision.Policy{ThunderAgent, ProgressTTL} }

// otherRules are all rules of other routers.
func otherRules() []decision.Policy { return append(append(Rivals(), ProgramRules()...), LLMDAdapters) }

// other returns the dispatcher of a rule.
func (j *job) other(s *sim) dispatcher {
	switch j.setup.Policy {
	case ThunderAgent:
		return newThunder(s)
	case ProgressTTL:
		return newProgress(s, &j.options.Profile)
	default:
		return newRival(s, j)
	}
}

// playOther runs a rule of another router.
func (j *job) playOther(s *sim) (Numbers, error) {
	s.router = j.other(s)
	if !s.run(j.most) {
		return Numbers{Mean: j.most, Abandoned: true}, nil
	}
	return s.numbers(j.options.Goal), nil
}

// agent is a session as a rule of another router sees it.
type agent struct {
	home int // the engine that it has a place on; -1: none
	last int // the engine of its last place, -1 before
	// tokens is its context, running its calls in flight and waiting those that are held, in their order.
	tokens  float64
	running int
	waiting []int
	// since is when the first of the waiting calls arrived, returned when its last call ended.
	since, returned float64
	calls           int  // that have arrived
	marked          bool // it loses its place when its call ends
}

// agents are the sessions of a run.
type agents struct {
	sim *sim
	of  []*agent // by session
	// left are the calls of each session that have not ended.
	left     []int
	capacity []float64 // of each engine in tokens
}

func newAgents(s *sim) agents {
	g := agents{sim: s}
	for i := range s.trace.Calls {
		n := s.trace.Calls[i].Session
		for n >= len(g.of) {
			g.of, g.left = append(g.of, nil), append(g.left, 0)
		}
		g.left[n]++
	}
	for _, e := range s.engines {
		g.capacity = append(g.capacity, float64(e.machine.Pool().Size()*s.trace.block))
	}
	return g
}

// come notes an arrival.
func (g *agents) come(call int) *agent {
	c := &g.sim.trace.Calls[call]
	a := g.of[c.Session]
	if a == nil {
		a = &agent{home: -1, last: -1}
		g.of[c.Session] = a
	}
	if a.calls++; a.running == 0 {
		a.tokens = float64(c.In)
	}
	if len(a.waiting) == 0 {
		a.since = g.sim.now
	}
	a.waiting = append(a.waiting, call)
	return a
}

// send sends the calls of an agent that has a place.
func (g *agents) send(a *agent) {
	for _, call := range a.waiting {
		a.running++
		g.sim.send(call, a.home)
	}
	a.waiting = a.waiting[:0]
}

// end notes the end of a call, and reports whether it was the session's last one.
func (g *agents) end(at *attempt) (a *agent, over bool) {
	c := &g.sim.trace.Calls[at.call]
	a = g.of[c.Session]
	a.running--
	a.tokens, a.returned = float64(c.In+c.Out), g.sim.now
	g.left[c.Session]--
	if over = g.left[c.Session] == 0; over {
		a.home = -1
	}
	return a, over
}

// each calls do every so many seconds until all calls have ended.
func (g *agents) each(seconds float64, do func()) {
	g.sim.after(seconds, func() {
		if g.sim.ended < len(g.sim.trace.Calls) {
			do()
			g.each(seconds, do)
		}
	})
}

// place gives an agent a place and sends its calls.
func (g *agents) place(a *agent, engine int) {
	a.home, a.last = engine, engine
	g.send(a)
}

// pause takes an agent's place.
func (a *agent) pause() { a.home, a.marked = -1, false }

// thunder is ThunderAgent's rule: its mode "tr".
type thunder struct {
	agents
	queue []*agent // that are paused, or new
}

const (
	thunderEach   = 5.0  // seconds between two looks
	thunderBuffer = 100  // tokens kept free for each agent
	thunderForce  = 1800 // seconds after which a call goes through
)

func newThunder(s *sim) *thunder {
	t := &thunder{agents: newAgents(s)}
	t.each(thunderEach, t.look)
	return t
}

// remaining is the memory that is left on an engine.
func (t *thunder) remaining(engine int) float64 {
	left := t.capacity[engine]
	for _, a := range t.of {
		if a != nil && a.home == engine {
			left -= a.tokens + thunderBuffer
		}
	}
	return left
}

func (t *thunder) arrive(call int) {
	a := t.come(call)
	switch {
	case a.home >= 0:
		t.send(a)
	case a.calls > 1 || len(t.queue) > 0:
		t.enqueue(a)
	default:
		best, most := -1, a.tokens+thunderBuffer
		for e := range t.capacity {
			// The engine with the fewest tokens that has room: engines are of equal size.
			if left := t.remaining(e); left >= most {
				best, most = e, left
			}
		}
		if best < 0 {
			t.enqueue(a)
			return
		}
		t.place(a, best)
	}
}

func (t *thunder) enqueue(a *agent) {
	for _, other := range t.queue {
		if other == a {
			return
		}
	}
	t.queue = append(t.queue, a)
}

// look pauses agents where the memory is exceeded, and then resumes some.
func (t *thunder) look() {
	for e := range t.capacity {
		t.relieve(e)
	}
	t.resume()
}

// relieve pauses the agents between two calls, the smallest first, until the engine's contexts fit. When that is not enough, all
// others there are paused at the end of their call.
func (t *thunder) relieve(engine int) {
	for t.remaining(engine) < 0 {
		var least *agent
		for _, a := range t.of {
			if a != nil && a.home == engine && a.running == 0 && (least == nil || a.tokens < least.tokens) {
				least = a
			}
		}
		if least == nil {
			for _, a := range t.of {
				if a != nil && a.home == engine {
					a.marked = true
				}
			}
			return
		}
		least.pause()
		t.enqueue(least)
	}
}

// resume gives places to new agents first, then to others, in each group the smallest first, on the engine that had the most room.
func (t *thunder) resume() {
	left := make([]float64, len(t.capacity))
	order := make([]int, len(t.capacity))
	for e := range left {
		left[e], order[e] = t.remaining(e), e
	}
	sortBy(order, func(e int) float64 { return -left[e] })
	sortBy(t.queue, func(a *agent) float64 {
		if a.calls > 1 {
			return 1e12 + a.tokens
		}
		return a.tokens
	})
	kept := t.queue[:0]
	for _, a := range t.queue {
		force := len(a.waiting) > 0 && t.sim.now-a.since > thunderForce
		at := -1
		for _, e := range order {
			if left[e] >= a.tokens+thunderBuffer || force && at < 0 {
				at = e
				break
			}
		}
		if at < 0 {
			kept = append(kept, a)
			continue
		}
		left[at] -= a.tokens + thunderBuffer
		t.place(a, at)
	}
	clear(t.queue[len(kept):])
	t.queue = kept
}

func (t *thunder) firstToken(*attempt) {}

func (t *thunder) progress(at *attempt, tokens int) {
	c := &t.sim.trace.Calls[at.call]
	t.of[c.Session].tokens = math.Max(t.of[c.Session].tokens, float64(c.In+tokens))
}

func (t *thunder) finished(at *attempt) {
	if a, over := t.end(at); !over && a.marked && a.running == 0 {
		a.pause()
		t.enqueue(a)
	}
}

func (t *thunder) changed(int, []kvEvent) {}
