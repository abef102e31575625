package speed

// stepSample is the mean time of decode steps that carried no prefill.
type stepSample struct {
	load    float64 // the prior's cost of what the steps read
	seconds float64
	steps   float64
}

// stepKept is the number of step samples that a fit looks at.
const stepKept = 48

// stepFit fits the time of a decode step: base + load · stepLoad.
type stepFit struct {
	ring       [stepKept]stepSample
	added      int
	base, load float64
	rows       []row
}

func (f *stepFit) count() int { return f.added }

// add takes in a sample; prior is the Model without it.
func (f *stepFit) add(s stepSample, prior *Model) {
	f.ring[f.added%stepKept] = s
	f.added++
	if f.added > stepKept && f.added%4 != 0 {
		return
	}
	f.rows = f.rows[:0]
	weight := 1.0
	for i := range min(f.added, stepKept) {
		s := &f.ring[(f.added-1-i)%stepKept]
		f.rows = append(f.rows, row{x: [3]float64{1, s.load, 0}, t: s.seconds, weight: weight * s.steps / (s.steps + 8)})
		weight *= fading
	}
	// The scale of both first, then each.
	list := make([]weighed, 0, stepKept)
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
