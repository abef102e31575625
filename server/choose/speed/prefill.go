package speed

import (
	"math"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// sample is a piece of an engine's busy time: the work finished in it.
type sample struct {
	// tokens is the uncached prompt tokens, bent the sum over prompts of n·(context + n/2).
	tokens, bent float64
	// starts is 1 when the engine had nothing to prefill before, so that the time includes Overhead
	// and the wait for the end of a decode step.
	starts float64
	// steps is the number of engine steps, each of which took decode seconds for its decodes.
	steps  float64
	decode Decodes
	// doubt is the share of tokens that are an estimate.
	doubt   float64
	seconds float64
	// external is set when callers outside of the fleet reported a part of it.
	external bool
}

// bunched is the factor by which a piece of an account is faster than the one just before it when it belongs to that.
const bunched = 20

// bunchedBehind reports whether s, which began when before ended, is too fast for the sample just before it and for the known speed of
// the rank.
func (s *sample) bunchedBehind(before *sample, m *Model) bool {
	return s.seconds*before.tokens*bunched < before.seconds*s.tokens && s.seconds*bunched < s.tokens*m.Token
}

// join adds the work finished directly after s.
func (s *sample) join(next *sample) {
	all := s.tokens + next.tokens
	s.doubt = (s.doubt*s.tokens + next.doubt*next.tokens) / all
	s.tokens, s.bent, s.steps, s.seconds = all, s.bent+next.bent, s.steps+next.steps, s.seconds+next.seconds
}

const (
	// kept is the number of samples that a fit looks at, fading the weight that a sample keeps with
	// each newer one.
	kept   = 64
	fading = 0.97
	// proven is the number of samples from which a rank is believed to differ from its kind by more
	// than mistrust.
	proven   = 8
	mistrust = 2
	// brief is the time in seconds of a sample that counts half: shorter ones measure the noise of
	// clocks and networks.
	brief = 0.010
	// decodeShare bounds the share of a sample's time that is explained by decodes.
	decodeShare = 0.95
)

// prefillFit fits Token, Bend and Overhead to the last samples.
type prefillFit struct {
	ring  [kept]sample
	count int // of all samples so far
	from  int // the first one that counts
	drift drift
	rows  []row
	list  []weighed
}

func (f *prefillFit) add(s sample) {
	f.ring[f.count%kept] = s
	f.count++
}

// latest is the last sample.
func (f *prefillFit) latest() *sample { return &f.ring[(f.count+kept-1)%kept] }

// changed takes in how the last sample differs from m's prediction. When the last ones show that the engine became faster or slower, it
// forgets the others and returns true.
func (f *prefillFit) changed(m *Model, now time.Time) bool {
	s := f.latest()
	if s.weight()*s.tokens/(s.tokens+tokensOfHalf) < leastEvidence {
		return false
	}
	n := f.drift.see(s.seconds/s.predicted(m), now)
	if n > 0 {
		f.from = max(f.from, f.count-n)
	}
	return n > 0
}

// forget drops all samples.
func (f *prefillFit) forget() { f.count, f.from, f.drift = 0, 0, drift{} }

// weight is how much the sample counts by itself.
func (s *sample) weight() float64 { return s.seconds / (s.seconds + brief) * (1 - s.doubt/2) }

// predicted is the time in seconds that m predicts for the sample.
func (s *sample) predicted(m *Model) float64 {
	return m.Token*s.tokens + m.Token/m.Bend*s.bent + s.steps*m.Step(s.decode.Sequences, s.decode.Context) + m.Overhead*s.starts
}

// fit updates m; m.Step is used as it is. prior is the belief without samples, with the
// weight of so many samples.
func (f *prefillFit) fit(m *Model, prior *Model, priorWeight float64) {
	n := min(f.count-f.from, kept)
	if n == 0 {
		m.Token, m.Bend, m.Overhead, m.Spread, m.Samples = prior.Token, prior.Bend, prior.Overhead, prior.Spread, 0
		return
	}
	f.rows, f.list = f.rows[:0], append(f.list[:0], weighed{1, priorWeight})
	weight := 1.0
	for i := range n {
		s := &f.ring[(f.count-1-i)%kept]
		offset := min(s.steps*m.Step(s.decode.Sequences, s.decode.Context), decodeShare*s.seconds)
		predicted := prior.Token*s.tokens + prior.Token/prior.Bend*s.bent + prior.Overhead*s.starts
		w := weight * s.weight()
		f.rows = append(f.rows, row{x: [3]float64{s.tokens, s.bent, s.starts}, t: s.seconds - offset, offset: offset, weight: w})
		f.list = append(f.list, weighed{(s.seconds - offset) / predicted, w * s.tokens / (s.tokens + tokensOfHalf)})
		weight *= fading
	}
	scale := median(f.list)
	token := boundToken(prior.Token * scale)
	start := [3]float64{token, token / prior.Bend, prior.Overhead}
	// The bend is drawn to the built-in one and not to the kind's: where prompts are no evidence, ranks that
	// follow each other would carry it away.
	bend := float64(priorBend)
	if prior.Source == decision.SpeedLearned { // of this very rank, by another router
		bend = prior.Bend
	}
	p := least(f.rows, start, [3]pull{{start[0], priorWeight / 4}, {token / bend, 4}, {start[2], 1}})
	m.Token = boundToken(p[0])
	m.Bend = min(max(m.Token/max(p[1], 1e-30), shortestBend), longestBend)
	m.Overhead = min(max(p[2], priorOverhead/20), 60)
	m.Samples = f.count
	m.Spread = f.spread(m)
}

// tokensOfHalf is the prompt length at which a sample counts half for the scale: the time of shorter
// prompts is mostly overhead.
const tokensOfHalf = 256

// spread estimates the uncertainty of m.Token from how far the samples lie from the fit.
func (f *prefillFit) spread(m *Model) float64 {
	f.list = f.list[:0]
	var effective float64
	for i := range f.rows {
		r := &f.rows[i]
		predicted := m.Token*r.x[0] + m.Token/m.Bend*r.x[1] + m.Overhead*r.x[2] + r.offset
		w := r.weight * r.x[0] / (r.x[0] + tokensOfHalf)
		f.list = append(f.list, weighed{factor(r.t+r.offset, predicted), w})
		effective += w
	}
	// The median absolute deviation of a normal distribution is 0.67 standard deviations.
	return 2*math.Log(median(f.list))/0.67/math.Sqrt(1+effective) + 1/(1+effective)
}
