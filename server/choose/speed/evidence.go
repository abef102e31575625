package speed

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// evidence is everything that shows how fast an engine is: samples of the router's own requests, what the engine counts, what callers outside
// of the fleet report, and what another router has learned. Its user guards it.
type evidence struct {
	prefill prefillFit
	steps   stepFit
	whole   *wholeFit // nil while no answer came whole
	reports *reports  // nil while callers outside of the fleet have reported nothing
	engine  *Model    // from the engine's own counters, while no request was seen
	// counters is the time of a token by the engine's own counters, at the fastest; 0 when unknown.
	counters float64
	// peer is another router's Model, in place of older samples.
	peer *Model
	// learnt is when the last sample of prefill ended, taught when the last own sample came.
	learnt, taught time.Time
}

// weights of the prior beliefs, as a number of samples.
const (
	priorWeight  = 0.5
	engineWeight = 1
	kindWeight   = 2
	// stepPrior and stepKind are the weights of a guess of decode steps, and of equals' steps; a sample of eight steps weighs half of one.
	stepPrior, stepKind = 0.1, 0.5
	// several is the number of experienced ranks from which a rank needs all its samples to be believed, alone the number of samples that
	// it needs when one other contradicts it, which may itself be wrong.
	several, alone = 2, 3
)

// unseen is how long after the last sample of its own requests a rank is taught by its engine's counts.
const unseen = 30 * time.Second

// slackening is by how much a count may show an engine as slower than the one before did.
const slackening = 1.1

// needed is the number of samples from which a rank is believed to differ from the median of so many others by more than mistrust.
func needed(others int) int {
	if others < several {
		return alone
	}
	return proven
}

// own reports whether there are samples of this router's own requests.
func (e *evidence) own() bool { return e.prefill.count > 0 || e.whole != nil }

// follows reports whether p begins where the last sample ended, and belongs to it: first tokens that were late and came together. The one
// before had the time of both.
func (e *evidence) follows(p *piece, m *Model) bool {
	return p.starts == 0 && e.prefill.count > 0 && e.learnt.Equal(p.from) && p.bunchedBehind(e.prefill.latest(), m)
}

// meanBent is the mean of context + n/2 over the tokens seen lately.
func (e *evidence) meanBent() float64 {
	var tokens, bent float64
	for i := range min(e.prefill.count, kept) {
		tokens += e.prefill.ring[i].tokens
		bent += e.prefill.ring[i].bent
	}
	if tokens == 0 {
		return 0
	}
	return bent / tokens
}

// stepped takes in the time of steps. It reports whether the model is to be made again.
func (e *evidence) stepped(s stepSample, k equals, now time.Time) bool {
	before, weight := prior(), stepPrior
	if k.typical != nil {
		before = *k.typical
		if k.of > 0 && k.typical.Steps > 0 {
			weight = stepKind
		}
	}
	if e.peer != nil {
		before = *e.peer
	}
	changed := e.steps.add(s, &before, weight, now)
	n := e.steps.count()
	return changed || n <= 8 || n%16 == 0
}

// counted takes in that the engine counted seconds of prefill for so many tokens, while the rank's Model was m. It reports whether that
// teaches anything.
func (e *evidence) counted(tokens, seconds float64, m *Model, now time.Time) bool {
	if t := boundToken(seconds / tokens); e.counters == 0 || t < slackening*e.counters {
		e.counters = t
	} else {
		e.counters *= slackening
	}
	own := e.prefill.count > 0
	if own && now.Sub(e.taught) <= unseen {
		return false
	}
	counted := prior()
	counted.Token, counted.Spread, counted.Source = boundToken(seconds/tokens), 1, decision.SpeedEngine
	if e.engine != nil {
		counted.Token = min(counted.Token, slackening*e.engine.Token)
	}
	counted.follow(&e.steps)
	e.engine = &counted
	if own && seconds/tokens < m.Token {
		e.prefill.add(sample{tokens: tokens, bent: tokens * e.meanBent(), seconds: seconds, doubt: 1}) // taught stays: it is no sample of its own
	}
	return true
}

// before is the belief without samples, with the weight of so many.
func (e *evidence) before(k equals) (Model, float64) {
	switch {
	case e.peer != nil:
		return *e.peer, e.peer.weight()
	case k.of > 0:
		return k.typical.ofKind(), kindWeight
	case e.engine != nil:
		return *e.engine, engineWeight
	case k.typical != nil:
		return k.typical.ofKind(), min(kindWeight, max(priorWeight, float64(k.typical.Samples)/2))
	}
	return prior(), priorWeight
}

// model is the Model that the evidence gives of a rank among its equals.
func (e *evidence) model(k equals) Model {
	prior, weight := e.before(k)
	m := prior
	whole := e.wholly()
	fit, ownWeight := e.teachers(weight)
	switch {
	case whole != nil:
		m.Source = decision.SpeedLearned
		whole.fit(&m, &prior, weight, e.counters)
		if k.of == 0 && whole.count < early {
			m.slower(&prior)
		}
	case fit != nil:
		m.Source = decision.SpeedLearned
		e.follow(&m)
		for range 2 { // the decode times follow from the rate while no step was seen
			fit.fit(&m, &prior, ownWeight)
			e.follow(&m)
		}
		if fit != &e.prefill {
			m.temper(&prior)
		}
		if e.peer != nil {
			m.Samples += e.peer.Samples
		}
	case e.steps.count() > 0:
		e.follow(&m)
	}
	if k.of > 0 && (whole != nil || fit != nil) && m.Samples < needed(k.of) {
		m.Token = min(max(m.Token, k.typical.Token/mistrust), k.typical.Token*mistrust)
	}
	if k.typical != nil && e.peer == nil && e.steps.count() == 0 && whole == nil {
		m.Base, m.Load = k.typical.Base*m.Token/k.typical.Token, k.typical.Load*m.Token/k.typical.Token
	}
	// First tokens show how fast a rank prefills, unless they come before that is done, or late and all together.
	if k.of > 0 {
		m.Token = max(m.Token, k.typical.Token/k.fastest())
	}
	if e.counters > 0 {
		m.Token = max(m.Token, e.counters/sharing)
	}
	return m
}

// follow sets the decode part of m: as own steps show it, else as the peer's did, else as it follows from prefill.
func (e *evidence) follow(m *Model) {
	if e.steps.count() == 0 && e.peer != nil && e.peer.Steps > 0 {
		m.Base, m.Load, m.Steps = e.peer.Base, e.peer.Load, e.peer.Steps
		return
	}
	m.follow(&e.steps)
}

// wholly returns the answers that came whole where they teach: no first token was seen of late.
func (e *evidence) wholly() *wholeFit {
	if e.whole == nil || e.whole.count == 0 || e.prefill.count > 0 && e.whole.last.Sub(e.learnt) <= unseen {
		return nil
	}
	return e.whole
}

// teachers are the samples that the Model is made of, nil for none, and the weight of the belief without them.
func (e *evidence) teachers(weight float64) (*prefillFit, float64) {
	switch {
	case e.prefill.from > 0: // it changed, and its equals may not have
		return &e.prefill, min(weight, priorWeight)
	case e.prefill.count > 0:
		return &e.prefill, weight
	case e.reports != nil && e.reports.agreeing.count >= worth:
		return &e.reports.agreeing, weight * worth
	}
	return nil, 0
}

// reporting returns the reports, which few ranks have.
func (e *evidence) reporting() *reports {
	if e.reports == nil {
		e.reports = &reports{}
	}
	return e.reports
}

// imported takes m in place of older samples. It reports false while this router learns the rank itself, or has m already.
func (e *evidence) imported(m *Model, now time.Time) bool {
	if e.peer != nil && *e.peer == *m || e.own() && now.Sub(e.taught) < ownFor {
		return false
	}
	e.peer = m
	e.prefill.forget() // the peer's samples are newer
	e.steps, e.whole = stepFit{}, nil
	return true
}
