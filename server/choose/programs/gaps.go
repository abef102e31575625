package programs

import (
	"math"
	"time"
)

const (
	// priorQuick is the chance of a quick return of a class that nothing is known of.
	priorQuick = 0.2
	// classWeight is the number of its own gaps that a session's class counts as.
	classWeight = 6
	// remembered bounds the gaps of a session, and remembering the gaps of a class, that count.
	remembered, remembering = 16, 64
	// learnedUpTo is the longest gap in horizons that counts among a class's gaps.
	learnedUpTo = 20
	// mostReturns bounds the chance that a session returns at all, leastSoon the share of gaps within the horizon by which it is estimated.
	mostReturns, leastSoon = 0.98, 0.5
	// awaited is the chance of a return while a child is at work.
	awaited = 0.9
	// Gaps are counted in steps, from firstStep seconds, half an octave each; the last one begins at 6 minutes. counting of them are
	// kept, and the distribution counts as smoothly.
	steps, firstStep, counting, smoothly = 28, 0.03, 512, 8
	// leastSpread bounds the learned variance of the logarithm of gaps from below.
	leastSpread = 0.1
)

// class is the knowledge about the gaps of sessions that are alike.
type class struct {
	// quick is the share of calls after which the session returns within the horizon, of outcomes calls.
	quick    float64
	outcomes int
	// mean and spread are mean and variance of the logarithm of gaps in seconds, of gaps gaps.
	mean, spread float64
	gaps         int
	// counted are the gaps by their length, tail the gaps that are longer than the end of a step.
	counted, tail [steps]float64
	// soon is the share of gaps that end within the horizon.
	soon float64
}

func newClass() *class { return &class{quick: priorQuick, mean: math.Log(4), spread: 1, soon: 1} }

// judge learns the outcome of one call.
func (c *class) judge(quick bool) {
	c.outcomes = min(c.outcomes+1, remembering)
	v := 0.0
	if quick {
		v = 1
	}
	c.quick += (v - c.quick) / float64(c.outcomes+1)
}

// learn learns the length of a gap.
func (c *class) learn(gap, horizon time.Duration) {
	c.gaps = min(c.gaps+1, remembering)
	w := 1 / float64(c.gaps+4)
	d := math.Log(max(gap.Seconds(), 1e-3)) - c.mean
	c.mean += w * d
	c.spread = max(leastSpread, c.spread+w*(d*d-c.spread))
	c.count(gap)
	c.soon = 1 - c.longer(horizon)
}

// count counts a gap by its length. Old ones fade.
func (c *class) count(gap time.Duration) {
	c.counted[stepOf(gap)]++
	var sum float64
	for i := steps - 1; i >= 0; i-- {
		c.tail[i] = sum
		sum += c.counted[i]
	}
	if sum < counting {
		return
	}
	for i := range c.counted {
		c.counted[i] /= 2
	}
}

// stepOf is the step of a length: half an octave each, from firstStep.
func stepOf(gap time.Duration) int {
	return max(0, min(steps-1, int(2*math.Log2(max(1e-9, gap.Seconds()/firstStep)))))
}

// longer is the chance that a gap is longer than age: of the gaps that were counted, and of a log-normal distribution of the same mean
// and spread, which counts as some. The tools of agents take a second or minutes: no distribution with two parameters has both.
func (c *class) longer(age time.Duration) float64 {
	z := (math.Log(max(age.Seconds(), 1e-3)) - c.mean) / math.Sqrt(2*c.spread)
	smooth := math.Erfc(z) / 2
	all := c.tail[0] + c.counted[0]
	at := stepOf(age)
	return (smoothly*smooth + c.tail[at] + c.counted[at]/2) / (smoothly + all)
}

// record is the outcome of a session's own gaps.
type record struct{ quick, outcomes float64 }

func (r *record) judge(quick bool) {
	if r.outcomes >= remembered {
		r.quick, r.outcomes = r.quick/2, r.outcomes/2
	}
	r.outcomes++
	if quick {
		r.quick++
	}
}

// likelihood is the chance that the session returns within the horizon after a call.
func (p *program) likelihood() float64 {
	return (classWeight*p.kin.class().quick + p.record.quick) / (classWeight + p.record.outcomes)
}

// chance is the chance that a session which is in a gap returns. One with children returns when they have ended.
func (p *program) chance(now time.Duration) float64 {
	class := p.kin.class()
	returns := min(mostReturns, p.likelihood()/max(leastSoon, class.soon))
	longer := returns * class.longer(now-p.ended)
	chance := 0.0
	if longer > 0 {
		chance = longer / (longer + 1 - returns)
	}
	if len(p.children) > 0 && chance < awaited && p.awaits(now) {
		return awaited
	}
	return chance
}

// awaits reports whether a child is likely to be at work still. It forgets children that are not.
func (p *program) awaits(now time.Duration) bool {
	kept := p.children[:0]
	for _, c := range p.children {
		if c.busy() || c.known && c.chance(now) >= leastChance {
			kept = append(kept, c)
		}
	}
	clear(p.children[len(kept):])
	p.children = kept
	return len(kept) > 0
}
