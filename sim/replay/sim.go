package replay

import (
	"container/heap"
	"math"
	"math/rand/v2"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

// dispatcher is the router's side of a simulation.
type dispatcher interface {
	// arrive hands over a call; the dispatcher sends it to an engine, now or later.
	arrive(call int)
	// firstToken says that the router has a call's first token.
	firstToken(a *attempt)
	// progress says how many tokens the router has, finished that it has the last one.
	progress(a *attempt, tokens int)
	finished(a *attempt)
	// changed hands over what changed in the cache of engine e; the slice is the dispatcher's.
	changed(e int, events []kvEvent)
}

// outcomes are how each call went.
type outcomes struct {
	arrived []float64
	first   []float64 // time of the first token, NaN before
	done    []float64 // time of the last token, NaN before
	cached  []int
	ended   int // calls that have their last token or were rejected
}

func newOutcomes(n int) outcomes {
	o := outcomes{arrived: make([]float64, n), first: make([]float64, n), done: make([]float64, n), cached: make([]int, n)}
	for i := range n {
		o.first[i], o.done[i] = math.NaN(), math.NaN()
	}
	return o
}

// sim is one run of one trace under one dispatcher.
type sim struct {
	clock
	outcomes
	waits   waits
	misses  misses
	trace   *workload
	engines []*engine
	pooled  bool // the engines share one cache
	delays  Delays
	legs    legs
	below   below
	router  dispatcher
	looked  float64 // when the engines were last caught up
	dice    *rand.Rand
	steps   int

	next    [][]int32     // calls that follow a call in its session
	missing map[int32]int // calls that must still end before a call with Joins arrives
	due     []float64     // when a call of an open loop arrives that another one is waited for; nil when none is
	atOnce  *atOnce       // nil: programs start at their own times
}

// workload is a trace made ready: block hashes per call, arrival times scaled.
type workload struct {
	*Trace
	block  int
	wave   Wave
	hashes [][]blockhash.Hash
	before []int32 // the turn before in the session, -1 for none
	// sessions are the names of the sessions; a subagent's has that of its agent's before a slash.
	sessions []string
}

// newSim starts the arrivals. speed divides the trace's time between arrivals; jitter spreads
// arrivals of one moment evenly up to the next.
func newSim(w *workload, engines []*engine, speed float64, seed uint64) *sim {
	n := len(w.Calls)
	s := &sim{trace: w, engines: engines, outcomes: newOutcomes(n), misses: newMisses(DefaultGoal(), n), next: make([][]int32, n), dice: rand.New(rand.NewPCG(seed, 11))}
	s.legs.links = make([]link, len(engines))
	at := spread(w.Trace, seed)
	for i := range w.Calls {
		if p := w.Calls[i].Prev; p >= 0 {
			s.next[p] = append(s.next[p], int32(i))
			s.join(i, w.Calls[i].Joins)
			continue
		}
		if w.After != nil && w.After[i] >= 0 {
			if s.due == nil {
				s.due = make([]float64, n)
			}
			s.next[w.After[i]] = append(s.next[w.After[i]], int32(i))
			s.due[i] = w.wave.warp(at[i] / speed)
			continue
		}
		s.schedule(event{at: w.wave.warp(at[i] / speed), kind: eventArrival, n: i})
	}
	return s
}

// spread returns the calls' arrivals; arrivals that the trace's coarse clock puts at one moment are
// spread at random until the next.
func spread(t *Trace, seed uint64) []float64 {
	dice := rand.New(rand.NewPCG(seed, 1))
	at := make([]float64, len(t.Calls))
	for i := 0; i < len(at); {
		j := i
		for j < len(at) && t.Calls[j].At == t.Calls[i].At {
			j++
		}
		gap := 0.0
		if j < len(at) {
			gap = t.Calls[j].At - t.Calls[i].At
		}
		for k := i; k < j; k++ {
			at[k] = t.Calls[k].At
			if j-i > 1 {
				at[k] += dice.Float64() * gap
			}
		}
		i = j
	}
	return at
}

// run plays until nothing is left to happen, or until the mean time to the first token is sure to
// exceed most seconds (0: no limit), or too many calls have missed the goal; then it reports false.
func (s *sim) run(most float64) bool {
	for len(s.events) > 0 {
		ev := heap.Pop(&s.events).(event)
		s.now = ev.at
		switch ev.kind {
		case eventArrival:
			if s.trace.isChat(ev.n) && s.atOnce.over() {
				continue
			}
			s.arrived[ev.n] = s.now
			s.waits.begin(s.now)
			s.router.arrive(ev.n)
		case eventEngine:
			if e := s.engines[ev.n]; e.gen == ev.gen && e.until == ev.at {
				s.step(e)
			}
		case eventDo:
			ev.do()
		}
		if s.steps++; most > 0 && s.steps&1023 == 0 && s.waits.mean(s.now, len(s.arrived)) > most || s.misses.over() {
			return false
		}
	}
	return true
}

// send dispatches a call to engine e.
func (s *sim) send(call, e int) *attempt {
	c := &s.trace.Calls[call]
	a := &attempt{call: call, engine: e, sent: s.now, scheduled: math.NaN()}
	a.seq = enginemodel.Sequence{Owner: a, Keys: s.trace.hashes[call], Prompt: c.In, Most: c.Out, Adapter: c.Adapter}
	if lie := s.engines[e].lie; lie.Instant > 0 {
		s.after(s.delays.Send+s.delays.Receive, func() { s.lied(a, lie.Instant) })
		return a
	}
	a.submit(s)
	return a
}

// submit has an attempt reach its engine's scheduler.
func (a *attempt) submit(s *sim) {
	s.after(s.sending(), func() {
		e := s.engines[a.engine]
		s.catchUp(e)
		if e.add(&a.seq, s.now) {
			s.plan(e)
		}
	})
}

// sending is the time from a choice until the engine's scheduler has the request.
func (s *sim) sending() float64 {
	if s.delays.SendJitter == 0 {
		return s.delays.Send
	}
	return s.delays.Send + s.dice.ExpFloat64()*s.delays.SendJitter
}

func (s *sim) plan(e *engine) {
	if e.step != nil && len(e.step.Reads) > 0 {
		splits{s}.reads(e)
	}
	if e.step != nil && len(e.step.Loads) > 0 {
		beginLoads(s, e)
	}
	if e.steps > 0 {
		s.schedule(event{at: e.until, kind: eventEngine, n: e.slot, gen: e.gen})
	}
}

// lookEvery is how far in seconds an engine's decode steps may be ahead of what the router knows of them.
const lookEvery = 0.02

// look shows the router what the engines have done in the steps that ended by now.
func (s *sim) look() {
	if s.now < s.looked+lookEvery || s.pooled {
		return
	}
	s.looked = s.now
	for _, e := range s.engines {
		s.catchUp(e)
	}
}

// catchUp completes the steps of an engine's run that have ended. The step that is running is then
// the first of the planned ones.
func (s *sim) catchUp(e *engine) {
	n := e.ended(s.now)
	if n == 0 {
		return
	}
	began := e.started + e.step.Seconds(n)
	out := e.machine.Complete(n)
	s.publish(e)
	e.plan(began)
	s.plan(e)
	s.progress(out)
}

// progress reports tokens that are no first ones.
func (s *sim) progress(out []*enginemodel.Sequence) {
	for _, q := range out {
		if a := q.Owner.(*attempt); a.begun && q.Made() >= a.reported+progressStep {
			a.reported = q.Made()
			s.router.progress(a, a.reported)
		}
	}
}

// progressStep is how many tokens the router reports together, as in package router.
const progressStep = 8

// step ends a run of an engine's steps and starts the next.
func (s *sim) step(e *engine) {
	out := e.machine.Complete(e.steps)
	s.publish(e)
	s.progress(out)
	ended := false
	for i, q := range out {
		a := q.Owner.(*attempt)
		at := s.delays.Receive + float64(i)*s.delays.Gap
		if s.delays.Jitter > 0 && (!a.started || !q.Live()) {
			at += s.dice.ExpFloat64() * s.delays.Jitter
		}
		if a.lead != nil {
			splits{s}.computed(a, at)
			ended = true
			continue
		}
		if a.prefix != nil {
			a.started, a.prefilled = true, s.now
			splits{s}.copied(a, at)
			ended = true
			continue
		}
		if !a.started {
			a.started, a.prefilled = true, s.now
			a.firstAt = s.now + at
			s.after(at, func() { s.begun(a) })
		}
		if !q.Live() {
			ended = true
			if a.from == nil {
				e.prefills.ended(a, s.trace.Calls[a.call].In)
			}
			at = max(at, a.firstAt-s.now)
			s.after(at, func() { s.finished(a) })
		}
	}
	e.plan(s.now)
	s.plan(e)
	if ended && s.pooled {
		s.unblock()
	}
}

// unblock plans the idle engines with waiting calls that found no block in the shared cache.
func (s *sim) unblock() {
	for _, e := range s.engines {
		if e.steps == 0 && len(e.machine.Waiting()) > 0 {
			e.plan(s.now)
			s.plan(e)
		}
	}
}

// begun is the moment at which the router has a call's first token.
func (s *sim) begun(a *attempt) {
	s.router.firstToken(a)
	a.begun = true
	s.first[a.call] = s.now
	s.waits.end(s.now, s.arrived[a.call])
	s.misses.begun(a.call, s.now-s.arrived[a.call])
	if a.from != nil { // what the engine that answers has is not computed, whether it held it or read it
		s.cached[a.call] += a.from.lead.cached
		return
	}
	s.cached[a.call] += a.seq.Cached()
}

// finished is the moment at which the router has its last one.
func (s *sim) finished(a *attempt) {
	s.done[a.call] = s.now
	s.misses.finished(a.call, s.first[a.call]-s.arrived[a.call], s.now-s.first[a.call], s.trace.Calls[a.call].Out)
	s.ended++
	s.startNext(a.call)
	s.router.finished(a)
}

// publish delivers the changes of an engine's cache.
func (s *sim) publish(e *engine) {
	if len(e.events) > 0 {
		s.router.changed(e.slot, e.events)
		e.events = nil
	}
}

// reject ends a call that the router rejected: it has no first token, and its session continues.
func (s *sim) reject(call int) {
	s.waits.leave(s.arrived[call])
	s.ended++
	s.startNext(call)
}

// join has a call wait for further ones.
func (s *sim) join(call int, joins []int) {
	if len(joins) == 0 {
		return
	}
	if s.missing == nil {
		s.missing = map[int32]int{}
	}
	s.missing[int32(call)] = 1 + len(joins)
	for _, j := range joins {
		s.next[j] = append(s.next[j], int32(call))
	}
}

// startNext schedules the calls that waited for the end of one.
func (s *sim) startNext(call int) {
	for _, n := range s.next[call] {
		if s.missing[n] > 1 {
			s.missing[n]--
			continue
		}
		at := s.now
		if s.trace.Calls[n].Prev >= 0 {
			at += s.trace.Calls[n].At
		} else {
			at = max(at, s.due[n])
		}
		s.schedule(event{at: at, kind: eventArrival, n: int(n)})
	}
	if s.atOnce.ended(s.trace.program(call)) {
		s.startProgram(s.now)
	}
}
