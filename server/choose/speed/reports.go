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

// add takes in a sample that callers reported a part of.
func (p *reports) add(s sample) {
	p.all.add(s)
	p.agree()
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

// temper makes the Model that reports taught count as little as they do.
func (m *Model) temper(prior *Model) {
	m.Samples /= worth
	m.Spread = max(m.Spread, min(prior.Spread, 0.5))
}

// stepped takes in one request's steps, in place of the same one's before. Once several requests have reported theirs it returns them all.
func (p *reports) stepped(one stepReport) []stepReport {
	for i := range p.steps {
		if p.steps[i].by == one.by {
			p.steps[i] = one
			return nil
		}
	}
	if p.steps = append(p.steps, one); len(p.steps) < worth {
		return nil
	}
	all := p.steps
	p.taught, p.steps = true, nil
	return all
}
