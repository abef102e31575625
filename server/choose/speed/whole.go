package speed

import (
	"math"
	"time"
)

// flow counts the work sent to an engine, and the engine's decode work over time.
type flow struct {
	past
	at      time.Time
	decodes Decodes // since at
}

// past is a flow up to a moment.
type past struct {
	// tokens and bent are the sums of all prompts sent so far, as in sample.
	tokens, bent float64
	// sequences and context are the decodes times the seconds that they lasted.
	sequences, context float64
}

// advance takes the flow to now, from when on the engine decodes d.
func (f *flow) advance(now time.Time, d Decodes) {
	if t := now.Sub(f.at).Seconds(); t > 0 && !f.at.IsZero() {
		f.sequences += t * float64(f.decodes.Sequences)
		f.context += t * float64(f.decodes.Context)
	}
	f.at, f.decodes = now, d
}

// sent counts a prompt.
func (f *flow) sent(w *Work) {
	if !w.known() {
		return
	}
	f.tokens += w.Tokens
	f.bent += w.Tokens * (w.Context + w.Tokens/2)
}

// since is the engine's work from p on, for so many seconds.
func (f *flow) since(p *past, seconds float64) sample {
	return sample{
		tokens: f.tokens - p.tokens, bent: f.bent - p.bent, starts: 1, seconds: seconds,
		decode: Decodes{Sequences: int(math.Round((f.sequences - p.sequences) / seconds)), Context: int((f.context - p.context) / seconds)},
	}
}

// wholeFit fits the time of prompt tokens and of decode steps to answers that come whole. From its arrival to its end a request gets
// one token per step, and the steps carry the prefills of that time: its own prompt, and the prompts of requests that came after it.
type wholeFit struct {
	ring  [kept]sample
	count int // of all samples so far
	from  int // the first one that counts
	drift drift
	last  time.Time
	rows  []row
	list  []weighed
}

// add takes in a sample, which m predicted.
func (f *wholeFit) add(s sample, m *Model, now time.Time) {
	f.ring[f.count%kept] = s
	f.count++
	f.last = now
	if n := f.drift.see(s.seconds/s.predicted(m), now); n > 0 {
		f.from = max(f.from, f.count-n)
	}
}

// wholePull is the weight, as a number of samples, of the assumption that prefill and decode are faster or slower than believed by
// the same factor.
const wholePull = 1

// fit updates m, from the belief without samples with the weight of so many samples. A token takes most seconds at the longest; 0: no limit.
func (f *wholeFit) fit(m *Model, prior *Model, priorWeight, most float64) {
	n := min(f.count-f.from, kept)
	f.rows, f.list = f.rows[:0], append(f.list[:0], weighed{1, priorWeight})
	weight := 1.0
	for i := range n {
		s := &f.ring[(f.count-1-i)%kept]
		w := weight * s.weight()
		x := [3]float64{s.tokens + s.bent/prior.Bend, s.steps * prior.Step(s.decode.Sequences, s.decode.Context), 0}
		f.rows = append(f.rows, row{x: x, t: s.seconds - prior.Overhead, offset: prior.Overhead, weight: w})
		f.list = append(f.list, weighed{s.seconds / s.predicted(prior), w})
		weight *= fading
	}
	scale := median(f.list)
	token := boundToken(prior.Token * scale)
	p := least(f.rows, [3]float64{token, scale, 1}, [3]pull{{token, wholePull}, {scale, wholePull}, {1, 1}})
	m.Token = boundToken(p[0])
	step := max(p[1], scale/wholeRange)
	if most > 0 && m.Token > most {
		m.Token = most
		step = f.stepAt(most, scale)
	}
	m.Bend, m.Overhead = prior.Bend, prior.Overhead
	m.Base, m.Load = prior.Base*step, prior.Load*step
	m.Samples, m.Steps = f.count, f.count
	m.Spread = f.spread(m, step)
}

// early is the number of answers from which a rank is believed to be faster than the guess while none of its equals is known. With
// fewer, the rank that answered one more than they would seem the faster one, and get requests whose prefix they hold.
const early = experienced

// slower leaves m no faster than prior.
func (m *Model) slower(prior *Model) {
	m.Token, m.Base, m.Load = max(m.Token, prior.Token), max(m.Base, prior.Base), max(m.Load, prior.Load)
}

// wholeRange bounds how much faster steps are than the whole.
const wholeRange = 8

// stepAt is the factor on the time of steps where a token takes so long.
func (f *wholeFit) stepAt(token, scale float64) float64 {
	f.list = f.list[:0]
	for i := range f.rows {
		if r := &f.rows[i]; r.x[1] > 0 {
			f.list = append(f.list, weighed{max(r.t-token*r.x[0], 0) / r.x[1], r.weight})
		}
	}
	if len(f.list) == 0 {
		return scale
	}
	return max(median(f.list), scale/wholeRange)
}

// spread estimates the uncertainty of m.Token from how far the samples lie from the fit.
func (f *wholeFit) spread(m *Model, step float64) float64 {
	f.list = f.list[:0]
	var effective float64
	for i := range f.rows {
		r := &f.rows[i]
		predicted := m.Token*r.x[0] + step*r.x[1] + r.offset
		f.list = append(f.list, weighed{factor(r.t+r.offset, predicted), r.weight})
		effective += r.weight
	}
	return 2*math.Log(median(f.list))/0.67/math.Sqrt(1+effective) + 1/(1+effective)
}
