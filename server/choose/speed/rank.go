package speed

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Work is the prefill of one request as it was predicted when it was booked.
type Work struct {
	// Tokens are the uncached prompt tokens, Context the cached ones before them.
	Tokens, Context float64
	// Estimated is set when the prompt's length is a guess, Unknown when the cached part of the prompt
	// is unknown.
	Estimated, Unknown bool
	// Silent is set when the first token cannot be seen (an answer that is not streamed).
	Silent bool
	// External is set when a caller outside of the fleet sends the request: when it began and had its first token is the caller's word.
	External bool
}

// Entry is a request's place in the account of its Rank. The zero value is not booked. It must not
// be copied or moved while it is booked.
type Entry struct {
	work       Work
	booked     time.Time
	past       past // of its rank's flow, without it
	prev, next *Entry
	pending    bool // in the list of work without a first token
	void       bool // part of it was computed in a time that is not accounted for
}

// Decodes is what an engine decodes in addition to its prefill: sequences that read context tokens.
type Decodes struct{ Sequences, Context int }

const (
	// together is the time within which first tokens are taken to leave one engine step.
	together = 4 * time.Millisecond
	// pieces is the number of full steps of work from which a sample is complete: the start and the
	// end of a smaller one lie anywhere in a step that other prompts share.
	pieces = 2
)

// Rank is the account of one engine rank. Make one with Kinds.Add.
type Rank struct {
	// model is written under the lock of its kind.
	model atomic.Pointer[Model]
	place uint64 // in the order in which ranks joined the kind, 0 once removed; guarded by the kind's mu

	mu          sync.Mutex
	mirror      *atomic.Pointer[Model] // gets each Model, too; nil for none; guarded by mu
	kind        *kind                  // guarded by mu
	first, last *Entry                 // booked and without a first token, in the order of booking; guarded by mu
	since       time.Time              // when the running sample began; guarded by mu
	latest      time.Time              // the first token seen last; guarded by mu
	running     sample                 // guarded by mu
	budget      float64                // tokens per step; guarded by mu
	prefill     prefillFit
	steps       stepFit
	flow        flow      // guarded by mu
	pending     work      // of the entries that are open; guarded by mu
	silent      int       // open entries without a first token that can be seen; guarded by mu
	fitted      Model     // before lag and trial; guarded by mu
	lag         float64   // by how much slower the engine is than fitted, as work shows that is not done; 1 or 0: not at all; guarded by mu
	trial       trial     // guarded by mu
	whole       *wholeFit // nil while no answer came whole; guarded by mu
	engine      *Model    // from the engine's own counters, while no request was seen; guarded by mu
	watch       watch     // guarded by mu
	// reports are what callers outside of the fleet have reported. guarded by mu
	reports *reports
	// counters is the time of a token by the engine's own counters, at the fastest; 0 when unknown. learnt is when the last sample ended.
	// guarded by mu
	counters float64
	learnt   time.Time
	// excluded is set while the rank is no example for its kind; guarded by the kind's mu.
	excluded bool
	// peer is what another router has learned, in place of older samples; taught is when the last own sample came. guarded by mu
	peer   *Model
	taught time.Time
}

// Model is what is known now. The result is shared and must not be changed.
func (r *Rank) Model() *Model { return r.model.Load() }

// Mirror makes r store its Model in to, too: a reader of many ranks finds it where it reads the rest of them.
func (r *Rank) Mirror(to *atomic.Pointer[Model]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mirror = to
	to.Store(r.Model())
}

// setBudget sets the number of tokens that an engine step takes at most.
func (r *Rank) setBudget(tokens int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if tokens > 0 {
		r.budget = float64(tokens)
	}
}

// Booked opens an entry: the engine is sent w at now, while it decodes d.
func (r *Rank) Booked(e *Entry, w Work, now time.Time, d Decodes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flow.advance(now, d)
	*e = Entry{work: w, booked: now, past: r.flow.past, pending: true, prev: r.last}
	r.flow.sent(&w)
	r.pending.add(&w, 1)
	if w.Silent {
		r.silent++
	}
	defer r.tried(now)
	if r.last != nil {
		r.last.next = e
	} else {
		r.first = e
		r.begin(now, 1)
		if d.Sequences > 0 {
			r.running.steps = 0.5 // a decode step runs, and half of it is left on average
		}
	}
	r.last = e
}

// begin starts a sample.
func (r *Rank) begin(now time.Time, starts float64) {
	r.since, r.running = now, sample{starts: starts}
	if starts > 0 {
		r.latest = time.Time{}
	}
}

// Correct replaces the work of an open entry: the prompt is known better than when it was booked.
func (r *Rank) Correct(e *Entry, tokens, context float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.pending {
		r.pending.add(&e.work, -1)
		e.work.Tokens, e.work.Context, e.work.Estimated = tokens, context, false
		r.pending.add(&e.work, 1)
	}
}

// FirstToken closes the entry: the engine finished its prefill and the router saw that at now. It
// does nothing for an entry that is closed.
func (r *Rank) FirstToken(e *Entry, now time.Time, d Decodes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flow.advance(now, d)
	if !e.pending {
		return
	}
	if r.complete() && now.Sub(r.latest) > together {
		r.flush(r.latest)
		r.begin(r.latest, 0)
	}
	// Engines serve in order: silent ones before it are done, too.
	for p := r.first; p != nil && p != e; {
		next := p.next
		if p.work.Silent {
			r.credit(p, now)
		}
		p = next
	}
	r.credit(e, now)
	r.running.decode = d
	r.latest = now
	if r.first == nil {
		r.flush(now)
	}
}

// complete reports whether the running sample holds enough work to stand alone.
func (r *Rank) complete() bool {
	return r.running.tokens >= pieces*r.budget
}

// credit counts an entry's work as done at now.
func (r *Rank) credit(e *Entry, now time.Time) {
	r.unlist(e)
	if e.void || e.work.Unknown {
		r.begin(now, 0)
		return
	}
	s, n := &r.running, e.work.Tokens
	s.external = s.external || e.work.External
	s.tokens += n
	s.bent += n * (e.work.Context + n/2)
	s.steps += n / r.budget
	if e.work.Estimated {
		s.doubt += n
	}
}

func (r *Rank) unlist(e *Entry) {
	r.pending.add(&e.work, -1)
	if e.work.Silent {
		r.silent--
	}
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		r.first = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		r.last = e.prev
	}
	e.prev, e.next, e.pending = nil, nil, false
}

// flush hands the running sample to the fit; it ended at end.
func (r *Rank) flush(end time.Time) {
	s := r.running
	r.running = sample{}
	s.seconds = end.Sub(r.since).Seconds()
	if s.tokens <= 0 || s.seconds <= 0 {
		return
	}
	if s.starts > 0 && s.steps < 1 {
		s.steps++ // the step is not full, but it is a step
	}
	s.doubt /= s.tokens
	switch before := &r.prefill.ring[(r.prefill.count+kept-1)%kept]; {
	case s.external:
		r.reported(s)
	case s.starts == 0 && r.prefill.count > 0 && r.learnt.Equal(r.since) && s.bunchedBehind(before, r.Model()):
		before.join(&s) // first tokens that were late and came together: the one before had the time of both
		r.learnt = end
		r.refit(end)
	default:
		r.learn(s, end)
		r.learnt = end
	}
}

func (r *Rank) learn(s sample, now time.Time) {
	r.taught = now
	r.prefill.add(s)
	if before := r.fitted; r.prefill.changed(&before, now) {
		r.lag = 1
		r.refit(now)
		if r.steps.count() > 0 && r.steps.last.Before(r.prefill.drift.since) { // no step was seen since: decodes became slower as well
			r.steps.rescale(r.fitted.Token / before.Token)
			r.refit(now)
		}
		return
	}
	if r.lag > 1 && r.prefill.drift.run == 0 {
		r.lag = 1
		r.refit(now)
		return
	}
	if n := r.prefill.count; n <= kept/2 || n%4 == 0 {
		r.refit(now)
	}
}

// Ended closes the entry of a request that ended without a first token that could be seen. What the
// engine computed of it is unknown, so that the time until the work booked so far is done does not
// count.
func (r *Rank) Ended(e *Entry, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !e.pending {
		return
	}
	r.unlist(e)
	r.void(now)
}

// Disturbed notes that the engine computes for others, too: the time until the work booked so far is
// done does not count.
func (r *Rank) Disturbed(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.void(now)
}

// void drops the running sample and what the entries that are open will add.
func (r *Rank) void(now time.Time) {
	for e := r.first; e != nil; e = e.next {
		e.void = true
	}
	r.begin(now, 0)
}

// Stepped takes in the mean time in seconds of steps that decoded d and carried no prefill.
func (r *Rank) Stepped(seconds, steps float64, d Decodes, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reports != nil {
		r.reports.taught = false
	}
	r.stepped(seconds, steps, d, now)
}

func (r *Rank) stepped(seconds, steps float64, d Decodes, now time.Time) {
	if seconds <= 0 || steps <= 0 {
		return
	}
	before, weight := prior(), stepPrior
	if k, of := r.kind.typical(r); k != nil {
		before = *k
		if of > 0 && k.Steps > 0 {
			weight = stepKind
		}
	}
	if r.peer != nil {
		before = *r.peer
	}
	changed := r.steps.add(stepSample{load: stepLoad(d.Sequences, d.Context), seconds: seconds, steps: steps}, &before, weight, now)
	if n := r.steps.count(); changed || n <= 8 || n%16 == 0 {
		r.refit(now)
	}
}

// throughput takes in what the engine itself counted over an interval in which it never ran out of
// prefill: uncached tokens computed in seconds.
func (r *Rank) throughput(tokens, seconds float64, d Decodes, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if tokens <= 0 || seconds <= 0 {
		return
	}
	r.learn(sample{tokens: tokens, bent: tokens * r.meanBent(), steps: tokens / r.budget, decode: d, seconds: seconds, doubt: 1}, now)
}

// meanBent is the mean of context + n/2 over the tokens seen lately.
func (r *Rank) meanBent() float64 {
	var tokens, bent float64
	for i := range min(r.prefill.count, kept) {
		tokens += r.prefill.ring[i].tokens
		bent += r.prefill.ring[i].bent
	}
	if tokens == 0 {
		return 0
	}
	return bent / tokens
}

// unseen is how long after the last sample of its own requests a rank is taught by what its engine counts.
const unseen = 30 * time.Second

// slackening is by how much a count may show an engine as slower than the one before did.
const slackening = 1.1

// counted takes in what the engine counted: seconds spent in prefill, request by request, for so many uncached tokens. Requests that
// were prefilled together each count that time, so the engine may be faster than that and is not slower; of several counts the
// fastest is believed, and forgotten little by little. They count only while own requests teach nothing.
func (r *Rank) counted(tokens, seconds float64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := r.prefill.count > 0
	if tokens <= 0 || seconds <= 0 {
		return
	}
	if t := boundToken(seconds / tokens); r.counters == 0 || t < slackening*r.counters {
		r.counters = t
	} else {
		r.counters *= slackening
	}
	if own && now.Sub(r.taught) <= unseen {
		return
	}
	m := prior()
	m.Token, m.Spread, m.Source = boundToken(seconds/tokens), 1, decision.SpeedEngine
	if r.engine != nil {
		m.Token = min(m.Token, slackening*r.engine.Token)
	}
	m.follow(&r.steps)
	r.engine = &m
	if own && seconds/tokens < r.Model().Token {
		r.prefill.add(sample{tokens: tokens, bent: tokens * r.meanBent(), seconds: seconds, doubt: 1}) // taught stays: it is no sample of its own
	}
	r.refit(now)
}

// refit updates the Model and notifies the kind.
func (r *Rank) refit(now time.Time) {
	r.update()
	r.kind.learned(r, now)
}

// weights of what is believed before the first sample, as a number of samples.
const (
	priorWeight  = 0.5
	engineWeight = 1
	kindWeight   = 2
	// stepPrior and stepKind are those of a guess of decode steps, and of equals' steps; a sample of eight steps weighs half of one.
	stepPrior, stepKind = 0.1, 0.5
	// several is the number of experienced ranks from which a rank needs all its samples to be believed, alone the number of samples that
	// it needs when one other contradicts it, which may be the one that is wrong.
	several, alone = 2, 3
)

// needed is the number of samples from which a rank is believed to differ from the median of so many others by more than mistrust.
func needed(others int) int {
	if others < several {
		return alone
	}
	return proven
}

// update recomputes the Model.
func (r *Rank) update() {
	prior, weight := prior(), priorWeight
	kin, of := r.kind.typical(r)
	if of == 0 && kin != nil && kin.Token < prior.Token {
		// A few samples of one equal show that a guess is too fast. That it is too slow shows soon enough by itself, and an engine
		// that is slower than its equals must not have all the requests until then.
		kin = nil
	}
	switch {
	case r.peer != nil:
		prior, weight = *r.peer, r.peer.weight()
	case of > 0:
		prior, weight = kin.ofKind(), kindWeight
	case r.engine != nil:
		prior, weight = *r.engine, engineWeight
	case kin != nil:
		prior, weight = kin.ofKind(), min(kindWeight, max(priorWeight, float64(kin.Samples)/2))
	}
	m := prior
	whole := r.wholly()
	fit, ownWeight := r.teachers(weight)
	switch {
	case whole != nil:
		m.Source = decision.SpeedLearned
		whole.fit(&m, &prior, weight, r.counters)
		if of == 0 && whole.count < early {
			m.slower(&prior)
		}
	case fit != nil:
		m.Source = decision.SpeedLearned
		r.follow(&m)
		for range 2 { // what decodes take follows from the rate while no step was seen
			fit.fit(&m, &prior, ownWeight)
			r.follow(&m)
		}
		if fit != &r.prefill {
			m.temper(&prior)
		}
		if r.peer != nil {
			m.Samples += r.peer.Samples
		}
	case r.steps.count() > 0:
		r.follow(&m)
	}
	if of > 0 && (whole != nil || fit != nil) && m.Samples < needed(of) {
		m.Token = min(max(m.Token, kin.Token/mistrust), kin.Token*mistrust)
	}
	if kin != nil && r.peer == nil && r.steps.count() == 0 && whole == nil {
		m.Base, m.Load = kin.Base*m.Token/kin.Token, kin.Load*m.Token/kin.Token
	}
	// First tokens show how fast a rank prefills, unless they come before that is done, or late and all together.
	if of > 0 {
		m.Token = max(m.Token, kin.Token/r.fastest())
	}
	if r.counters > 0 {
		m.Token = max(m.Token, r.counters/sharing)
	}
	if r.watch.distrusted && of > 0 {
		own := m
		m = *kin
		m.Source, m.Samples, m.Spread = decision.SpeedDistrusted, own.Samples, max(own.Spread, 1)
	}
	r.fitted = m
	m = r.showing(m, kin)
	known := r.model.Load()
	if known == nil || *known != m { // a rank that follows its kind mostly has the same again
		fresh := m
		known = &fresh
	}
	r.kind.publish(r, known)
	if r.mirror != nil {
		r.mirror.Store(known)
	}
}
