package speed

import "math"

const (
	// worth is how many reports of callers outside of the fleet count as much as one first token that the router saw itself.
	worth = 4
	// sharing is the factor by which a rank may be faster than its engine counts: prompts that share a step each count its whole time.
	sharing = 8
	// agrees is the factor by which a report may differ from the median of all of them and count.
	agrees = 3
)

// reports are the pieces of a rank's account in which callers outside of the fleet reported first tokens, and the steps that they
// reported. They teach only while the router has seen nothing of the rank itself; a few of them must agree before they teach anything.
type reports struct {
	all, agreeing prefillFit
	// steps are the mean times of steps as different requests reported them.
	steps []stepReport
	// taught is set when the rank's steps are known from reports alone.
	taught bool
}

// stepReport is a piece of a stream that a caller outside of the fleet reported.
type stepReport struct {
	by             *Entry
	seconds, steps float64
	d              Decodes
}

// reporting returns the rank's reports, which few ranks have. r.mu is held.
func (r *Rank) reporting() *reports {
	if r.reports == nil {
		r.reports = &reports{}
	}
	return r.reports
}

// reported takes in a sample that callers reported a part of. r.mu is held.
func (r *Rank) reported(s sample) {
	p := r.reporting()
	p.all.add(s)
	p.agree()
	if r.prefill.count == 0 {
		r.update()
	}
}

// agree selects the reports that are not far from their median.
func (p *reports) agree() {
	n := min(p.all.count, kept)
	one := func(i int) (s *sample, ratio float64) {
		s = &p.all.ring[(p.all.count-n+i)%kept]
		return s, math.Log(s.seconds / (s.tokens + tokensOfHalf))
	}
	list := make([]weighed, 0, n)
	for i := range n {
		_, ratio := one(i)
		list = append(list, weighed{ratio, 1})
	}
	middle := median(list)
	p.agreeing.count = 0
	for i := range n {
		if s, ratio := one(i); math.Abs(ratio-middle) <= math.Log(agrees) {
			p.agreeing.add(*s)
		}
	}
}

// teachers are the samples that the Model is made of, nil for none, and the weight of what is believed without them. r.mu is held.
func (r *Rank) teachers(weight float64) (*prefillFit, float64) {
	switch {
	case r.prefill.count > 0:
		return &r.prefill, weight
	case r.reports != nil && r.reports.agreeing.count >= worth:
		return &r.reports.agreeing, weight * worth
	}
	return nil, 0
}

// temper makes the Model that reports taught count as little as they do.
func (m *Model) temper(prior *Model) {
	m.Samples /= worth
	m.Spread = max(m.Spread, min(prior.Spread, 0.5))
}

// SteppedBy is Stepped for what a caller outside of the fleet reported of its request. Several requests must show it.
func (r *Rank) SteppedBy(e *Entry, seconds, steps float64, d Decodes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.reporting()
	if seconds <= 0 || steps <= 0 || r.prefill.count > 0 || r.steps.count() > 0 && !p.taught {
		return
	}
	for i := range p.steps {
		if one := &p.steps[i]; one.by == e {
			one.seconds, one.steps, one.d = seconds, steps, d
			return
		}
	}
	if p.steps = append(p.steps, stepReport{e, seconds, steps, d}); len(p.steps) < worth {
		return
	}
	p.taught = true
	for _, s := range p.steps {
		r.stepped(s.seconds, s.steps/worth, s.d, r.taught)
	}
	p.steps = nil
}
