package speed

import (
	"time"
)

const (
	// soonest is the time in seconds from which work that is not done shows an engine as slow.
	soonest = 1
	// slowBy is the factor by which a rank must seem slower than its equals to be tried again, tryAfter the time without a sample after
	// which that happens first; each trial that changes nothing doubles it, up to tryLast.
	slowBy            = 1.5
	tryAfter, tryLast = time.Minute, 16 * time.Minute
)

// work is prefill that was sent and has no first token.
type work struct{ tokens, bent float64 }

func (w *work) add(o *Work, sign float64) {
	w.tokens += sign * o.Tokens
	w.bent += sign * o.Tokens * (o.Context + o.Tokens/2)
}

// trial has a rank that seems slow, and has no traffic for that reason, be taken for as fast as its equals for one request.
type trial struct {
	open bool
	from time.Time     // when the next one may open
	wait time.Duration // before that
}

// Look updates what time alone shows, at now: work that should be done long since, and samples that are old. Call it several times a second.
func (r *Rank) Look(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lag := r.lagging(now)
	open := r.retries(now)
	if lag != r.lag || open {
		r.lag = lag
		r.update()
	}
}

// lagging is by which factor the engine is slower than fitted, as shown by the work that it has not done: 1 for none. r.mu is held.
func (r *Rank) lagging(now time.Time) float64 {
	if r.silent > 0 || r.first == nil {
		return r.staying()
	}
	s := r.running
	s.tokens += r.pending.tokens
	s.bent += r.pending.bent
	s.steps += r.pending.tokens / r.budget
	elapsed := now.Sub(r.since).Seconds()
	if elapsed < soonest {
		return r.staying()
	}
	if f := elapsed / s.predicted(&r.fitted); f > offBy {
		return max(f, r.staying())
	}
	return r.staying()
}

// staying is what is left of a lag: it stays while the samples that come are as late. r.mu is held.
func (r *Rank) staying() float64 {
	if d := &r.prefill.drift; r.lag > 1 && d.run > 0 && d.slower {
		return r.lag
	}
	return 1
}

// retries opens a trial when one is due, and reports whether it did. r.mu is held.
func (r *Rank) retries(now time.Time) bool {
	t := &r.trial
	if t.open || r.first != nil || r.taught.IsZero() {
		return false
	}
	if from := r.taught.Add(tryAfter); t.from.Before(from) {
		if now.Before(from) {
			return false
		}
	} else if now.Before(t.from) {
		return false
	}
	kin, of := r.kind.typical(r)
	if of == 0 || r.excludedNow() || r.fitted.Token < slowBy*kin.Token {
		return false
	}
	t.open = true
	return true
}

// tried ends the trial: a request was sent. r.mu is held.
func (r *Rank) tried(now time.Time) {
	t := &r.trial
	if !t.open {
		return
	}
	t.open = false
	t.wait = min(max(2*t.wait, tryAfter), tryLast)
	t.from = now.Add(t.wait)
	r.prefill.drift.ready = true
	if r.whole != nil {
		r.whole.drift.ready = true
	}
	r.update()
}

// showing is m as the lag and the trial change it. r.mu is held.
func (r *Rank) showing(m Model, kin *Model) Model {
	if r.trial.open && kin != nil {
		own := m
		m = kin.ofKind()
		m.Samples = own.Samples
		return m
	}
	if r.lag > 1 {
		m.Token, m.Base, m.Load = boundToken(m.Token*r.lag), m.Base*r.lag, m.Load*r.lag
		m.Spread = max(m.Spread, 0.5)
	}
	return m
}

// excludedNow reports whether the rank is no example for its kind.
func (r *Rank) excludedNow() bool {
	r.kind.mu.Lock()
	defer r.kind.mu.Unlock()
	return r.excluded
}
