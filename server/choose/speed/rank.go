package speed

import (
	"sync"
	"sync/atomic"
	"time"
)

// Rank is the account of one engine rank, with the evidence that it gives and the trust in that. Make one with Kinds.Add.
type Rank struct {
	// model is written under the lock of its kind.
	model atomic.Pointer[Model]
	// place is that in the order in which ranks joined the kind, 0 once removed; excluded is set while the rank is no example for it.
	// Guarded by the kind's mu.
	place    uint64
	excluded bool

	mu       sync.Mutex
	mirror   *atomic.Pointer[Model] // gets each Model, too; nil for none; guarded by mu
	kind     *kind                  // guarded by mu
	account  account                // guarded by mu
	evidence evidence               // guarded by mu
	trust    trust                  // guarded by mu
	fitted   Model                  // before lag and trial; guarded by mu
}

// Model returns the present Model. The result is shared and must not be changed.
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
		r.account.budget = float64(tokens)
	}
}

// Booked opens an entry: the engine is sent w at now, while it decodes d.
func (r *Rank) Booked(e *Entry, w Work, now time.Time, d Decodes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.account.book(e, w, now, d)
	if r.trust.trial.end(now) {
		r.evidence.prefill.drift.ready = true
		if r.evidence.whole != nil {
			r.evidence.whole.drift.ready = true
		}
		r.update()
	}
}

// Correct replaces the work of an open entry: the prompt is known better than when it was booked.
func (r *Rank) Correct(e *Entry, tokens, context float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.account.correct(e, tokens, context)
}

// FirstToken closes the entry: the engine finished its prefill and the router saw that at now. It
// does nothing for an entry that is closed.
func (r *Rank) FirstToken(e *Entry, now time.Time, d Decodes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.account.flow.advance(now, d)
	if !e.pending {
		return
	}
	if p, ok := r.account.full(now); ok {
		r.finished(&p)
	}
	if p, ok := r.account.served(e, now, d); ok {
		r.finished(&p)
	}
}

// finished takes in a sample of the account.
func (r *Rank) finished(p *piece) {
	switch v := &r.evidence; {
	case p.external:
		v.reporting().add(p.sample)
		if v.prefill.count == 0 {
			r.update()
		}
	case v.follows(p, r.Model()):
		v.prefill.latest().join(&p.sample)
		v.learnt = p.to
		r.refit(p.to)
	default:
		r.learn(p.sample, p.to)
		v.learnt = p.to
	}
}

// learn takes in a sample of prefill.
func (r *Rank) learn(s sample, now time.Time) {
	v := &r.evidence
	v.taught = now
	v.prefill.add(s)
	if before := r.fitted; v.prefill.changed(&before, now) {
		r.trust.lag = 1
		r.refit(now)
		if v.steps.count() > 0 && v.steps.last.Before(v.prefill.drift.since) { // no step was seen since: decodes became slower as well
			v.steps.rescale(r.fitted.Token / before.Token)
			r.refit(now)
		}
		return
	}
	if r.trust.lag > 1 && v.prefill.drift.run == 0 {
		r.trust.lag = 1
		r.refit(now)
		return
	}
	if n := v.prefill.count; n <= kept/2 || n%4 == 0 {
		r.refit(now)
	}
}

// Answered closes the entry of an unstreamed answer of output tokens, while the engine decodes d, itself included. Both the prefill and the
// steps are learned from the whole time.
func (r *Rank) Answered(e *Entry, now time.Time, output int, d Decodes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !e.pending {
		return
	}
	s, ok := r.account.answered(e, now, output, d)
	if !ok {
		return
	}
	v := &r.evidence
	if v.whole == nil {
		v.whole = &wholeFit{}
	}
	v.whole.add(s, &r.fitted, now)
	v.taught = now
	r.refit(now)
}

// Ended closes the entry of a request that ended without a first token that could be seen. The engine's work for it is unknown,
// so that the time until the work booked so far is done does not
// count.
func (r *Rank) Ended(e *Entry, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !e.pending {
		return
	}
	r.account.unlist(e)
	r.account.void(now)
}

// Disturbed notes that the engine computes for others, too: the time until the work booked so far is
// done does not count.
func (r *Rank) Disturbed(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.account.void(now)
}

// Stepped takes in the mean time in seconds of steps that decoded d and carried no prefill.
func (r *Rank) Stepped(seconds, steps float64, d Decodes, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.evidence.reports != nil {
		r.evidence.reports.taught = false
	}
	r.stepped(seconds, steps, d, now)
}

// SteppedBy is Stepped for a report by a caller outside of the fleet. Several requests must show it.
func (r *Rank) SteppedBy(e *Entry, seconds, steps float64, d Decodes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := &r.evidence
	p := v.reporting()
	if seconds <= 0 || steps <= 0 || v.prefill.count > 0 || v.steps.count() > 0 && !p.taught {
		return
	}
	for _, s := range p.stepped(stepReport{e, seconds, steps, d}) {
		r.stepped(s.seconds, s.steps/worth, s.d, v.taught)
	}
}

func (r *Rank) stepped(seconds, steps float64, d Decodes, now time.Time) {
	if seconds <= 0 || steps <= 0 {
		return
	}
	if r.evidence.stepped(stepSample{load: stepLoad(d.Sequences, d.Context), seconds: seconds, steps: steps}, r.kind.equals(r), now) {
		r.refit(now)
	}
}

// throughput takes in the engine's own count over an interval in which it never ran out of
// prefill: uncached tokens computed in seconds.
func (r *Rank) throughput(tokens, seconds float64, d Decodes, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if tokens <= 0 || seconds <= 0 {
		return
	}
	r.learn(sample{tokens: tokens, bent: tokens * r.evidence.meanBent(), steps: tokens / r.account.budget, decode: d, seconds: seconds, doubt: 1}, now)
}

// counted takes in the engine's counts: seconds spent in prefill, request by request, for so many uncached tokens. Requests that
// were prefilled together each count that time, so the engine may be faster than that and is not slower; of several counts the
// fastest is believed, and forgotten little by little. They count only while own requests teach nothing.
func (r *Rank) counted(tokens, seconds float64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if tokens > 0 && seconds > 0 && r.evidence.counted(tokens, seconds, r.Model(), now) {
		r.refit(now)
	}
}

// Predicted compares how long a first token took with the predicted time, in seconds, to notice
// a rank whose predictions are wrong. It reports whether the rank's Model is now trusted, and
// whether that changed.
func (r *Rank) Predicted(predicted, actual float64, now time.Time) (trusted, changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed = r.trust.watch.see(predicted, actual, now)
	if changed {
		r.update()
	}
	return !r.trust.watch.distrusted, changed
}

// Error is the mean of predicted ÷ actual of late; 1 while nothing was predicted.
func (r *Rank) Error() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trust.watch.error()
}

// Look updates the evidence of time alone, at now: work that should be done long since, and samples that are old. Call it several times a
// second.
func (r *Rank) Look(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lag := r.trust.lagging(r.account.late(now, &r.fitted), &r.evidence.prefill.drift)
	tried := r.account.first == nil && r.trust.trial.due(r.evidence.taught, now) && r.kind.equals(r).slow(&r.fitted)
	if tried {
		r.trust.trial.open = true
	}
	if lag != r.trust.lag || tried {
		r.trust.lag = lag
		r.update()
	}
}

// refit updates the Model and notifies the kind.
func (r *Rank) refit(now time.Time) {
	r.update()
	r.kind.learned(r, now)
}

// update recomputes the Model.
func (r *Rank) update() {
	k := r.kind.equals(r).plausible()
	r.fitted = r.trust.fitted(r.evidence.model(k), k)
	m := r.trust.shown(r.fitted, k)
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
