package evaluate

import (
	"github.com/kvpilot/kvpilot/server/choose/chooser/answers"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// For tests that need a fleet with a history, which package booking makes.
const (
	DecodeWeight   = decodeWeight
	MaxOverdue     = maxOverdue
	WholeUpTo      = wholeUpTo
	CheapestListed = cheapestListed
	HoldersListed  = holdersListed
)

var (
	Conducted = conducted
	OmegaOf   = omega
)

func (e *Evaluator) Undisturbed(d *decision.Decision, cand *decision.Candidate, l *load.RankLoad, usual float64) float64 {
	c := e.calm(d, answers.Counted(d.ExpectedOutput))
	return c.time(d, cand, l, usual)
}

func (e *Evaluator) CrowdingOf(cand *decision.Candidate, d *decision.Decision, l *load.RankLoad) float64 {
	return e.crowding(cand, d, l)
}
