package chooser

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/settings"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// evaluate fills s.d with all that is known for req at now: one candidate per rank. planned is
// predicted work that waits in the router for each rank; it may be nil.
func (e *evaluator) evaluate(s *evaluation, req *ask.Request, of *remembered, now time.Time, planned map[replica.Slot]float64) error {
	t, d := e.settings.Or(req.Settings).Of(req.Model), &s.d
	s.begin(req, of, now, t)
	s.d.Seed = e.dice.next()
	if len(req.Options.Weights) > 0 {
		params, err := selector.Apply(t.Params, req.Options.Weights)
		if err != nil {
			return err
		}
		s.d.Params = params
	}
	if s.whole = wholly(req, &s.d); s.whole {
		s.d.Params.Interference *= wholeInterference
		s.whole = of.streams.Load() == 0 // those would wait, too
	}
	e.comparison.JudgeUnlessRun(now)
	s.held = e.settings.Or(req.Settings).HoldAbove > 0 && s.d.Policy == decision.PredictedTTFT && req.Booking.Books() && !req.NoQueue
	e.candidates(s, req, of)
	s.avoidStalled(now)
	matching := e.clock.Now()
	e.overlap(s, req)
	s.d.Scored = e.clock.Now().Sub(matching)
	s.slots = e.memory.recall(d, s.pool, req, &of.trail, s.slots)
	e.loads(s, req, now, planned)
	s.pairUp(req, e.splitAbove)
	return nil
}

// begin fills the decision from the request and the settings of its model.
func (s *evaluation) begin(req *ask.Request, of *remembered, now time.Time, t *settings.Rules) {
	d := &s.d
	*d = decision.Decision{
		Request: req.Request, At: now, DryRun: req.Booking == ask.DryRun,
		Rule:     decision.Rule{Policy: t.Policy, Params: t.Params, Pinned: req.IsPinned()},
		Prompt:   req.Size(of.lengths.Expected(req.Tenant, req.ExpectedOutput, req.OutputLimit)),
		Deciders: decision.Deciders{AskedBy: req.AskedBy, Alone: req.Alone},
		Ranks:    decision.Ranks{Candidates: d.Candidates[:0], Chosen: -1},
		Fleet:    decision.Fleet{Returning: usualReturn},
	}
	if req.SessionReturn < 0 {
		d.Returning = 0
	}
	if p := req.Options.Policy; p != "" {
		d.Policy = p
	}
	if d.Targets = req.Options.Targets; d.Policy == decision.PredictedTTFT {
		d.Objective, d.Targets = t.Objective, d.Targets.Or(t.Targets)
		if req.Options.Targets.Set() {
			d.Objective = decision.ObjectiveSLO // the caller's own targets
		}
		if !s.since.IsZero() {
			d.Waited = max(0, now.Sub(s.since))
		}
	}
}
