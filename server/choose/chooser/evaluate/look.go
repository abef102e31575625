package evaluate

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/past"
	"github.com/kvpilot/kvpilot/server/choose/chooser/settings"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Evaluate fills s.d with all that is known for req at now: one candidate per rank. planned is
// predicted work that waits in the router for each rank; it may be nil.
func (e *Evaluator) Evaluate(s *Evaluation, req *ask.Request, of *Model, now time.Time, planned map[replica.Slot]float64) error {
	t, d := e.Settings.Or(req.Settings).Of(req.Model), &s.Decision
	s.begin(req, of, now, t)
	s.Decision.Seed = e.Dice.next()
	if len(req.Options.Weights) > 0 {
		params, err := selector.Apply(t.Params, req.Options.Weights)
		if err != nil {
			return err
		}
		s.Decision.Params = params
	}
	if s.Decision.Whole = Wholly(req, &s.Decision); s.Decision.Whole {
		s.Decision.Params.Interference *= wholeInterference
	}
	s.Calm = s.Decision.Whole && of.Streams.Load() == 0 // those would wait, too
	e.Comparison.JudgeUnlessRun(now)
	s.Held = e.Settings.Or(req.Settings).HoldAbove > 0 && s.Decision.Policy == decision.PredictedTTFT && req.Booking.Books() && !req.NoQueue
	e.candidates(s, req, of)
	if e.Ranks.AnyStalled() {
		s.avoidStalled(now)
	}
	matching := e.Clock.Now()
	e.overlap(s, req)
	s.Decision.Scored = e.Clock.Now().Sub(matching)
	s.slots = e.Memory.Recall(d, s.Pool, req, &of.Trail, s.slots)
	e.Loads(s, req, now, planned)
	if s.Pulls, s.copying.Able = false, false; req.Copier != nil && e.Settings.Or(req.Settings).Config.CopyPrefixes {
		s.copies(req, e.Copies, e.Clock.Since(now))
	}
	s.pairUp(req, e.SplitAbove)
	return nil
}

// begin fills the decision from the request and the settings of its model.
func (s *Evaluation) begin(req *ask.Request, of *Model, now time.Time, t *settings.Rules) {
	d := &s.Decision
	*d = decision.Decision{
		Request: req.Request, At: now, DryRun: req.Booking == ask.DryRun,
		Rule:     decision.Rule{Policy: t.Policy, Params: t.Params, Pinned: req.IsPinned()},
		Prompt:   req.Size(of.Lengths.Expected(req.Tenant, req.ExpectedOutput, req.OutputLimit)),
		Deciders: decision.Deciders{AskedBy: req.AskedBy, Alone: req.Alone},
		Ranks:    decision.Ranks{Candidates: d.Candidates[:0], Chosen: -1},
		Fleet:    decision.Fleet{Returning: past.UsualReturn},
		Lookup:   req.Lookup(),
	}
	if req.SessionReturn < 0 {
		d.Returning = 0
	}
	if p := req.Options.Policy; p != "" {
		d.Policy = p
	}
	if d.Targets = req.Options.Targets; d.Policy == decision.PredictedTTFT {
		d.Objective, d.Targets = t.Objective, d.Targets.Or(t.Targets)
		switch own := req.Options.Objective; {
		case req.Options.Targets.Set():
			d.Objective = decision.ObjectiveSLO // the caller's own targets
		case own != "":
			d.Objective, d.Params = own, t.Under(own)
		}
		if !s.Since.IsZero() {
			d.Waited = max(0, now.Sub(s.Since))
		}
	}
}
