package speed

import "time"

// stepSample is the mean time of decode steps that carried no prefill.
type stepSample struct {
	load    float64 // the prior's cost of the steps' reads
	seconds float64
	steps   float64
}

// stepKept is the number of step samples that a fit looks at.
const stepKept = 48

// stepFit fits the time of a decode step: base + load · stepLoad.
type stepFit struct {
	ring       [stepKept]stepSample
	added      int
	from       int // the first sample that counts
	drift      drift
	last       time.Time
	base, load float64
	rows       []row
}

func (f *stepFit) count() int { return f.added }

// add takes in a sample; prior is the Model without samples, with the weight of so many. It reports whether the engine changed.
func (f *stepFit) add(s stepSample, prior *Model, weight float64, now time.Time) (changed bool) {
	f.ring[f.added%stepKept] = s
	f.added++
	f.last = now
	if f.added > 1 && s.steps >= leastSteps {
		if n := f.drift.see(s.seconds/(f.base+f.load*s.load), now); n > 0 {
			f.from = max(f.from, f.added-n)
			changed = true
		}
	}
	if f.added > stepKept && f.added%4 != 0 && !changed {
		return false
	}
	f.fit(prior, weight)
	return changed
}

// leastSteps is the number of steps whose mean time may contradict the Model.
const leastSteps = 7

// rescale makes all that is known longer by a factor.
func (f *stepFit) rescale(factor float64) {
	for i := range f.ring {
		f.ring[i].seconds *= factor
	}
	f.base *= factor
	f.load *= factor
}

// fit computes base and load; prior is the Model without samples, with the weight of so many.
func (f *stepFit) fit(prior *Model, priorWeight float64) {
	f.rows = f.rows[:0]
	weight := 1.0
	for i := range min(f.added-f.from, stepKept) {
		s := &f.ring[(f.added-1-i)%stepKept]
		f.rows = append(f.rows, row{x: [3]float64{1, s.load, 0}, t: s.seconds, weight: weight * s.steps / (s.steps + 8)})
		weight *= fading
	}
	// The scale of both first, then each.
	list := append(make([]weighed, 0, stepKept+1), weighed{1, priorWeight})
	for i := range f.rows {
		r := &f.rows[i]
		list = append(list, weighed{r.t / (prior.Base + prior.Load*r.x[1]), r.weight})
	}
	scale := median(list)
	start := [3]float64{prior.Base * scale, prior.Load * scale, 1}
	p := least(f.rows, start, [3]pull{{start[0], 0.5}, {start[1], 1}, {1, 1}})
	f.base = max(p[0], 1e-5)
	f.load = max(p[1], 0)
}
