package evaluate

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/adapters"
	"github.com/kvpilot/kvpilot/server/choose/chooser/reports"
)

// adapt prices the request's LoRA adapter on each rank.
func (e *Evaluator) adapt(s *Evaluation, now time.Time) {
	d := &s.Decision
	if d.Adapter == "" {
		return
	}
	look := e.Adapters.Look(d.Adapter, e.Residence.Get(), time.Duration(e.Clock.Since(now)))
	defer look.Done()
	for i := range d.Candidates {
		cand := &d.Candidates[i]
		if !Works(cand) {
			continue
		}
		of := adapters.Rank{Slot: cand.Slot, Life: s.Owner(i).Life, Listed: s.Pool.Ranks[i].Listed}
		var rep reports.Report
		if e.Reports != nil && e.Reports.Report(cand.Slot, now, int(cand.Waiting), &rep) {
			of.Report = rep.Adapters
		}
		cand.Adapting = look.At(of)
	}
}
