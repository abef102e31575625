package splits

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Report is what the sides of one split did in the last hour.
type Report struct {
	Model string
	Sides []SideReport
}

// SideReport is one side's part.
type SideReport struct {
	Name, Model string
	Labels      map[string]string
	Weight      int
	// Baseline is set for the side that the others are compared with, Ready when a replica could serve its last request.
	Baseline, Ready bool
	// Back is why it gets no requests; nil when it does.
	Back *Back
	// Requests ended, Failed of them in an error.
	Requests, Failed int
	// The medians and 99th percentiles of times to the first token, and of times of whole answers; 0 when none was seen.
	FirstP50, FirstP99, WholeP50, WholeP99 time.Duration
	// Regret is the shadow policy's mean regret in seconds; it counts where Shadowed is set.
	Regret   float64
	Shadowed bool
	// Worse says in which way it is clearly worse than the baseline in the last hour; empty when it is not, or too little is known.
	Worse string
}

// List returns the splits that had a request in the last hour or have a side that stepped back, by model.
func (s *Splits) List() []Report {
	if s == nil {
		return nil
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Report
	for _, model := range slices.Sorted(maps.Keys(s.splits)) {
		sp := s.splits[model]
		if now.Sub(sp.used) > lately && !slices.ContainsFunc(sp.sides, func(one *side) bool { return one.back != nil }) {
			continue
		}
		list = append(list, s.report(sp, now))
	}
	return list
}

func (s *Splits) report(sp *split, now time.Time) Report {
	r := Report{Model: sp.model}
	base := baseline(sp.sides)
	of := sp.sides[base].recent.sum(now)
	for i, one := range sp.sides {
		sum := one.recent.sum(now)
		out := SideReport{
			Name: one.name, Model: cmp.Or(one.Model, sp.model), Labels: one.Labels, Weight: one.Weight, Baseline: i == base, Ready: one.ready, Back: one.back,
			Requests: int(sum.requests), Failed: int(sum.failed),
			FirstP50: sum.first.quantile(.5), FirstP99: sum.first.quantile(.99), WholeP50: sum.whole.quantile(.5), WholeP99: sum.whole.quantile(.99),
		}
		if out.Shadowed = sum.shadows > 0; out.Shadowed {
			out.Regret = sum.regret / float64(sum.shadows)
		}
		if least := uint32(s.config.StepBackSessions); i != base && sum.requests >= least && of.requests >= least {
			out.Worse = verdict(&of, &sum)
		}
		r.Sides = append(r.Sides, out)
	}
	return r
}

// String names the side for logs.
func (a *Assignment) String() string {
	if a == nil {
		return ""
	}
	return fmt.Sprintf("%s of %s", a.Side, a.Split)
}
