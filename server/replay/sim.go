package replay

import (
	"container/heap"
	"math"
	"math/rand/v2"

	"github.com/kvpilot/kvpilot/server/blockhash"
)

// event is something that happens at a moment of virtual time.
type event struct {
	at   float64
	seq  uint64 // orders events of one moment
	kind eventKind
	n    int    // call or engine
	gen  uint32 // of the engine when it was scheduled
	do   func()
}

type eventKind uint8

const (
	eventArrival eventKind = iota
	eventEngine
	eventDo
)

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

// dispatcher is the router's side of a simulation.
type dispatcher interface {
	// arrive hands over a call; the dispatcher sends it to an engine, now or later.
	arrive(call int)
	// firstToken and finished tell of a call's life on engine e.
	firstToken(call, e int)
	// begun tells, before firstToken of any, which calls have their first token now.
	begun(calls []*sequence)
	finished(call, e int)
	// stored and removed are engine e's KV events.
	stored(e, call, from, to int)
	removed(e int, keys []blockhash.Hash)
}

// sim is one run of one trace under one dispatcher.
type sim struct {
	trace   *workload
	engines []*engine
	now     float64
	events  eventHeap
	seq     uint64
	router  dispatcher

	arrived []float64 // per call
	first   []float64 // time of the first token, NaN before
	done    []float64 // time of the last token, NaN before
	cached  []int
	where   []int32
	next    [][]int32 // calls that follow a call in its session
	steps   int
	// waiting is the number of calls that have arrived and have no first token, since the sum of
	// their arrivals, and waited the sum of all waits that are over.
	waiting       int
	since, waited float64
}

// workload is a trace made ready: block hashes per call, arrival times scaled.
type workload struct {
	*Trace
	block  int
	hashes [][]blockhash.Hash
}

// newSim starts the arrivals. speed divides the trace's time between arrivals; jitter spreads
// arrivals of one moment evenly up to the next.
func newSim(w *workload, engines []*engine, speed float64, seed uint64) *sim {
	n := len(w.Calls)
	s := &sim{trace: w, engines: engines, arrived: make([]float64, n), first: make([]float64, n), done: make([]float64, n), cached: make([]int, n), where: make([]int32, n), next: make([][]int32, n)}
	for i := range s.first {
		s.first[i], s.done[i] = math.NaN(), math.NaN()
	}
	at := spread(w.Trace, seed)
	for i := range w.Calls {
		if p := w.Calls[i].Prev; p >= 0 {
			s.next[p] = append(s.next[p], int32(i))
			continue
		}
		s.schedule(event{at: at[i] / speed, kind: eventArrival, n: i})
	}
	for i, e := range engines {
		e.slot = i
		e.stored = func(call, from, to int) { s.router.stored(i, call, from, to) }
	}
	return s
}

// spread returns the calls' arrivals; those that the trace's coarse clock puts at one moment are
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

func (s *sim) schedule(e event) {
	s.seq++
	e.seq = s.seq
	heap.Push(&s.events, e)
}

// after runs do when delay seconds have passed.
func (s *sim) after(delay float64, do func()) {
	s.schedule(event{at: s.now + delay, kind: eventDo, do: do})
}

// mean is the mean time to the first token over all calls of the trace if nobody waited any longer:
// it only grows.
func (s *sim) mean() float64 {
	return (s.waited + float64(s.waiting)*s.now - s.since) / float64(len(s.arrived))
}

// run plays until nothing is left to happen, or until the mean time to the first token is sure to
// exceed most seconds (0: whatever it is); then it reports false.
func (s *sim) run(most float64) bool {
	for len(s.events) > 0 {
		ev := heap.Pop(&s.events).(event)
		s.now = ev.at
		switch ev.kind {
		case eventArrival:
			s.arrived[ev.n] = s.now
			s.waiting++
			s.since += s.now
			s.router.arrive(ev.n)
		case eventEngine:
			if e := s.engines[ev.n]; e.gen == ev.gen && e.until == ev.at {
				s.step(e)
			}
		case eventDo:
			ev.do()
		}
		if s.steps++; most > 0 && s.steps&1023 == 0 && s.mean() > most {
			return false
		}
	}
	return true
}

// send gives a call to engine e.
func (s *sim) send(call, e int) {
	c := &s.trace.Calls[call]
	s.where[call] = int32(e)
	en := s.engines[e]
	if en.add(&sequence{call: call, keys: s.trace.hashes[call], in: c.In, out: c.Out}, s.now) {
		s.plan(en)
	}
	s.evicted(en)
}

func (s *sim) plan(e *engine) {
	if e.running {
		s.schedule(event{at: e.until, kind: eventEngine, n: e.slot, gen: e.gen})
	}
}

// step ends a run of an engine's steps and starts the next.
func (s *sim) step(e *engine) {
	e.end()
	firsts, done := e.first, e.done
	for _, q := range e.gone {
		s.cached[q.call] -= q.computed - q.cached // it will find that again, and it is no hit
	}
	e.begin(s.now)
	s.plan(e)
	s.evicted(e)
	for _, q := range firsts {
		s.first[q.call] = s.now
		s.waiting--
		s.since -= s.arrived[q.call]
		s.waited += s.now - s.arrived[q.call]
		s.cached[q.call] += q.cached
	}
	s.router.begun(firsts)
	for _, q := range firsts {
		s.router.firstToken(q.call, e.slot)
	}
	for _, q := range done {
		s.done[q.call] = s.now
		for _, n := range s.next[q.call] {
			s.schedule(event{at: s.now + s.trace.Calls[n].At, kind: eventArrival, n: int(n)})
		}
	}
	for _, q := range done {
		s.router.finished(q.call, e.slot)
	}
}

func (s *sim) evicted(e *engine) {
	if keys := e.cache.takeRemoved(); len(keys) > 0 {
		s.router.removed(e.slot, keys)
	}
}
