package evaluate

import (
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

const (
	// wholeWeight is the weight of the time that a prefill costs the answers that a rank decodes, against the time that the request waits
	// for their end: docs/adr/032-whole-answers-teach.md.
	wholeWeight = 0.5
	// wholeInterference multiplies the weight of the decodes that a prefill delays for a request whose first token no client sees.
	wholeInterference = 4.5
)

// Wholly reports whether nothing but the end of the answer counts: the objective says so, or the answer comes in one piece and no
// objective asks for its first token.
func Wholly(req *ask.Request, d *decision.Decision) bool {
	if d.Policy != decision.PredictedTTFT {
		return false
	}
	return d.Objective == decision.ObjectiveCompletion || req.Unstreamed && d.Objective == decision.ObjectiveAnswer
}

// calm is how long a rank had better decode before a request is prefilled there of which nothing but the end of the answer counts: the numbers
// that are the same for all ranks.
type calm struct {
	steps   float64 // half of the answer
	waiting float64 // requests in the hold queue per rank
	waited  float64 // seconds that this one has waited
}

func (e *Evaluator) calm(d *decision.Decision, counted int) calm {
	return calm{float64(counted) / 2, float64(e.Queue.Len()) / float64(len(d.Candidates)), d.Waited.Seconds()}
}

// time is that in seconds on a candidate; 0: not at all. Steps with prefill are many times longer than steps without. So each answer that decodes
// is delayed by the whole prefill, while the request itself, and others that wait with it, are delayed by the time in which the others end.
// The time that the request has waited counts for it.
func (c *calm) time(d *decision.Decision, cand *decision.Candidate, l *load.RankLoad, usual float64) float64 {
	decoding := float64(l.InFlight - l.Prefilling)
	if decoding <= 0 {
		return 0
	}
	n := max(1, float64(d.PromptTokens)-float64(cand.GPU))
	prefill := decision.PrefillTime(cand.TokenTime, cand.Bend, float64(d.PromptTokens)-n, n)
	left := cand.StepTime * c.steps
	if wholeWeight*decoding*(prefill+usual)/2 <= left*(1+c.waiting)+c.waited {
		return 0
	}
	return left
}
