package replay

import (
	"container/heap"
	"math"
	"slices"

	"github.com/kvpilot/kvpilot/server/blockhash"
)

// Profile is the timing and size of a modelled replica.
type Profile struct {
	Name string
	// Token is the time to prefill one token at no context, in seconds; Bend the context at which
	// it has doubled: n tokens after c of context cost Token·n·(1 + (c + n/2)/Bend).
	Token, Bend float64
	// Base, PerSeq and PerKV make the time of a step: Base + PerSeq per decoding sequence + PerKV
	// per token of context they read.
	Base, PerSeq, PerKV float64
	// Budget is the tokens per step, MaxSeqs the sequences at once.
	Budget, MaxSeqs int
	// CacheTokens is the KV capacity in tokens.
	CacheTokens int
}

// Profiles lists the built-in replicas; the first is the default.
func Profiles() []Profile {
	return []Profile{
		{Name: "70b", Token: 1.0 / 8000, Bend: 50000, Base: 0.010, PerSeq: 50e-6, PerKV: 17e-9, Budget: 2048, MaxSeqs: 256, CacheTokens: 640000},
		{Name: "8b", Token: 1.0 / 25000, Bend: 30000, Base: 0.006, PerSeq: 30e-6, PerKV: 55e-9, Budget: 4096, MaxSeqs: 256, CacheTokens: 400000},
	}
}

// prefill is the compute time of n tokens after c tokens of context.
func (p *Profile) prefill(c, n float64) float64 { return p.Token * n * (1 + (c+n/2)/p.Bend) }

// sequence is one request inside an engine.
type sequence struct {
	call int
	// keys name the full blocks of prompt and, where known, output.
	keys     []blockhash.Hash
	in, out  int
	cached   int // prompt tokens found in the cache at admission
	computed int // prompt tokens done
	named    int // blocks that have their key
	held     []int32
	doneAt   int64 // the step in which it finishes
	aborted  bool  // the router took it back
}

// engine models one replica. Its clock is advanced by the simulation.
type engine struct {
	profile *Profile
	block   int
	slot    int
	cache   *blockCache
	// waiting are not admitted, filling are being prefilled, in order of arrival.
	waiting, filling []*sequence
	decoding         finishHeap
	context          float64 // tokens of context that the decoding sequences read
	step             int64   // steps done
	// started is when the present run of steps began, steps how many it has, until when it ends.
	started, until float64
	steps          int64
	chunks         []chunk
	running        bool
	blocked        bool
	gen            uint32
	busy           float64 // seconds spent in steps with prefill
	first, done    []*sequence
	gone           []*sequence // aborted, with the step that was running then
	stored         func(call, from, to int)
}

type chunk struct {
	seq *sequence
	n   int
}

func (e *engine) decodeStep(k, context float64) float64 {
	return e.profile.Base + e.profile.PerSeq*k + e.profile.PerKV*context
}

// add queues a sequence. It reports whether the engine's next event may have changed.
func (e *engine) add(s *sequence, now float64) bool {
	e.waiting = append(e.waiting, s)
	if !e.running {
		e.begin(now)
		return true
	}
	if len(e.chunks) > 0 || e.steps <= 1 || e.blocked {
		return false // looked at when the running step ends
	}
	// A run of decode steps: it ends with the step that is running now.
	k := float64(len(e.decoding))
	if n := e.stepsBy(now-e.started, k); n < e.steps {
		e.steps = n
		e.until = e.started + e.runTime(n, k)
		return true
	}
	return false
}

// runTime is the time of n decode steps of k sequences from the present context on.
func (e *engine) runTime(n int64, k float64) float64 {
	m := float64(n)
	return m*e.decodeStep(k, e.context) + e.profile.PerKV*k*m*(m-1)/2
}

// stepsBy is the number of steps that will have ended when the one running at elapsed has.
func (e *engine) stepsBy(elapsed, k float64) int64 {
	lo, hi := int64(1), e.steps
	for lo < hi {
		mid := (lo + hi) / 2
		if e.runTime(mid, k) >= elapsed {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// begin starts the next step, or a run of equal decode steps, at now.
func (e *engine) begin(now float64) {
	e.gen++
	e.started, e.chunks, e.running, e.blocked = now, e.chunks[:0], true, false
	budget := e.profile.Budget - len(e.decoding)
	var compute float64
	for _, s := range e.filling {
		if budget <= 0 {
			break
		}
		compute += e.schedule(s, &budget)
	}
	for len(e.waiting) > 0 && budget > 0 && len(e.filling)+len(e.decoding) < e.profile.MaxSeqs {
		s := e.waiting[0]
		if !e.admit(s) {
			break
		}
		e.waiting = e.waiting[1:]
		e.filling = append(e.filling, s)
		compute += e.schedule(s, &budget)
	}
	k := float64(len(e.decoding))
	if len(e.chunks) > 0 {
		e.steps = 1
		e.until = now + e.decodeStep(k, e.context) + compute
		e.busy += e.until - now
		return
	}
	if len(e.decoding) == 0 {
		e.running = false
		e.until = math.Inf(1)
		return
	}
	e.blocked = len(e.waiting) > 0
	e.steps = max(1, e.decoding[0].doneAt-e.step)
	e.until = now + e.runTime(e.steps, k)
}

// schedule gives s its share of the step and returns the compute time.
func (e *engine) schedule(s *sequence, budget *int) float64 {
	n := min(*budget, s.in-s.computed)
	*budget -= n
	e.chunks = append(e.chunks, chunk{s, n})
	return e.profile.prefill(float64(s.computed), float64(n))
}

// admit pins what the cache has of s and takes the blocks it will need to its end.
func (e *engine) admit(s *sequence) bool {
	total := (s.in + s.out + e.block - 1) / e.block
	limit := min(len(s.keys), (s.in-1)/e.block) // the last token is always computed
	hits := e.cache.match(s.keys[:limit])
	idle := 0
	for _, k := range s.keys[:hits] {
		if e.cache.entries[e.cache.byKey[k]].refs == 0 {
			idle++
		}
	}
	if total-hits > e.cache.available()-idle && len(e.filling)+len(e.decoding) > 0 {
		return false
	}
	s.held = e.cache.pin(s.held[:0], s.keys[:hits])
	s.held = e.cache.take(s.held, min(total-hits, e.cache.available()))
	s.cached = hits * e.block
	s.computed, s.named = s.cached, hits
	return true
}

// end finishes the run of steps: it moves tokens, and collects sequences with a first token in
// e.first and finished ones in e.done.
func (e *engine) end() {
	e.first, e.done, e.gone = e.first[:0], e.done[:0], e.gone[:0]
	e.step += e.steps
	e.context += float64(len(e.decoding)) * float64(e.steps)
	for len(e.decoding) > 0 && e.decoding[0].doneAt <= e.step {
		s := heap.Pop(&e.decoding).(*sequence)
		e.finish(s)
		e.context -= float64(s.in + s.out)
	}
	for _, c := range e.chunks {
		s := c.seq
		s.computed += c.n
		e.named(s, s.computed/e.block)
		if s.computed < s.in || s.aborted {
			continue
		}
		e.first = append(e.first, s)
		if s.out <= 1 {
			e.finish(s)
			continue
		}
		s.doneAt = e.step + int64(s.out-1)
		heap.Push(&e.decoding, s)
		e.context += float64(s.in + 1)
	}
	rest := e.filling[:0]
	for _, s := range e.filling {
		switch {
		case s.aborted:
			e.cache.release(s.held)
			e.gone = append(e.gone, s)
		case s.computed < s.in:
			rest = append(rest, s)
		}
	}
	e.filling = rest
}

// abort takes a call without a first token out. A step that runs cannot be stopped: what it computes
// is kept, as all that was computed before.
func (e *engine) abort(call int) {
	for _, s := range e.filling {
		if s.call == call && !s.aborted {
			s.aborted = true
			return
		}
	}
	e.waiting = slices.DeleteFunc(e.waiting, func(s *sequence) bool { return s.call == call })
}

// named publishes the keys of s's blocks up to n.
func (e *engine) named(s *sequence, n int) {
	n = min(n, len(s.keys), len(s.held))
	from := s.named // of the run of blocks that nobody else has named
	for ; s.named < n; s.named++ {
		if e.cache.name(s.held[s.named], s.keys[s.named]) {
			continue
		}
		e.publish(s, from, s.named)
		from = s.named + 1
	}
	e.publish(s, from, s.named)
}

func (e *engine) publish(s *sequence, from, to int) {
	if e.stored != nil && to > from {
		e.stored(s.call, from, to)
	}
}

func (e *engine) finish(s *sequence) {
	e.named(s, (s.in+s.out)/e.block)
	e.cache.release(s.held)
	s.held = nil
	e.done = append(e.done, s)
}

// finishHeap orders decoding sequences by the step in which they finish.
type finishHeap []*sequence

func (h finishHeap) Len() int           { return len(h) }
func (h finishHeap) Less(i, j int) bool { return h[i].doneAt < h[j].doneAt }
func (h finishHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *finishHeap) Push(x any)        { *h = append(*h, x.(*sequence)) }
func (h *finishHeap) Pop() any {
	old := *h
	s := old[len(old)-1]
	*h = old[:len(old)-1]
	return s
}
