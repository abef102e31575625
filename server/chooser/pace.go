package chooser

import (
	"math"

	"github.com/kvpilot/kvpilot/server/selector"
)

// What a replica is taken to do before it was measured: a 70B model on four GPUs. Only the ratio
// to reality matters, and a few first tokens correct it.
const (
	priorTokenTime    = 1.0 / 8000 // seconds per prompt token at no context
	priorBend         = 50000      // tokens of context at which a prompt token costs twice that
	priorStepTime     = 0.010      // seconds of a decode step with nothing to read
	priorSequenceTime = 5e-5       // seconds per sequence of a decode step
	priorReadTime     = 2e-8       // seconds per token of context that a decode step reads
	defaultBudget     = 2048       // tokens per step when the engine does not say

	// A rate is never believed to be further than this from the prior.
	paceBound = 40
	// A sample of fewer uncached tokens says more about overhead than about the rate.
	minSample = 512
	// forget is the weight that older samples keep with each new one.
	forget = 0.985
	// priorWeight is how many samples the prior counts for.
	priorWeight = 2
	// outlier bounds what one sample may claim: the time is cut to this many times the expected.
	outlier = 3
)

// pace learns how fast a rank prefills: the time per token and, where prompts differ enough in
// length, how attention bends it. It fits t = a·n + b·n·(context + n/2) by weighted least squares
// with a fading memory, pulled towards the prior; a is the token time and a/b the bend.
type pace struct {
	aa, ab, bb, at, bt float64 // sums of the normal equations
	a, b               float64
	samples            int
	streak             int // outliers in a row, below zero when they are short ones
}

func newPace() pace {
	return pace{a: priorTokenTime, b: priorTokenTime / priorBend}
}

func (p *pace) bend() float64 { return p.a / p.b }

func (p *pace) predict(context, n float64) float64 {
	return selector.PrefillTime(p.a, p.bend(), context, n)
}

// learn takes a sample: n uncached tokens after context cached ones took elapsed seconds of an
// otherwise idle prefill.
func (p *pace) learn(context, n, elapsed float64) {
	if n < minSample || elapsed <= 0 {
		return
	}
	expect := p.predict(context, n)
	elapsed = p.trim(elapsed, expect)
	x, y := n, n*(context+n/2)
	// Relative errors count, and a sample counts alike whatever was believed when it came: weighed by
	// the expected time itself, the first ones, cut short on a slow engine, would count most.
	w := p.a * p.a / (expect * expect)
	p.aa = forget*p.aa + w*x*x
	p.ab = forget*p.ab + w*x*y
	p.bb = forget*p.bb + w*y*y
	p.at = forget*p.at + w*x*elapsed
	p.bt = forget*p.bt + w*y*elapsed
	p.samples++
	p.solve()
}

// trim cuts an outlier. Several in a row on one side are no outliers: what was learned is wrong
// and is forgotten but for the present estimate. So are those before which there was nothing else: the
// engine is far from the prior, and what was cut of them is no measure of it.
func (p *pace) trim(elapsed, expect float64) float64 {
	switch {
	case elapsed > expect*outlier:
		p.streak = max(p.streak, 0) + 1
	case elapsed < expect/outlier:
		p.streak = min(p.streak, 0) - 1
	default:
		p.streak = 0
	}
	row := max(p.streak, -p.streak)
	if row >= 3 || row > p.samples {
		p.aa, p.ab, p.bb, p.at, p.bt = 0, 0, 0, 0, 0
	}
	if row >= 3 {
		p.streak = 0
	}
	return min(max(elapsed, expect/outlier), expect*outlier)
}

// solve minimises the squared relative error with the prior as extra samples: the scale is free
// to move after a few, the bend only when the data insist.
func (p *pace) solve() {
	// First the scale alone, the bend as it is.
	den := p.aa + 2*p.ab/p.bend() + p.bb/(p.bend()*p.bend())
	num := p.at + p.bt/p.bend()
	a0 := (num + priorWeight*p.a*p.pull()) / (den + priorWeight*p.pull())
	// Then both, pulled to that scale and the prior's bend.
	b0 := a0 / priorBend
	const wa, wb = 1, 2
	aa, bb := p.aa+wa, p.bb+wb*priorBend*priorBend
	at, bt := p.at+wa*a0, p.bt+wb*priorBend*priorBend*b0
	det := aa*bb - p.ab*p.ab
	if det <= 0 || math.IsNaN(det) {
		p.a, p.b = bounded(a0), bounded(a0)/priorBend
		return
	}
	a := bounded((at*bb - bt*p.ab) / det)
	b := (bt*aa - at*p.ab) / det
	p.a, p.b = a, min(max(b, a/1e6), a/4000)
}

// pull is how much of the prior is left: it fades as samples come in.
func (p *pace) pull() float64 { return 1 / float64(1+p.samples) }

func bounded(a float64) float64 {
	return min(max(a, priorTokenTime/paceBound), priorTokenTime*paceBound)
}
