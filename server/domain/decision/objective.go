package decision

import (
	"slices"
	"time"
)

// Objective is the quantity that predicted-ttft minimizes.
type Objective string

// The objectives.
const (
	// ObjectiveTTFT is the time to the first token alone.
	ObjectiveTTFT Objective = "ttft"
	// ObjectiveAnswer is the time to the last token: a little of the former for much of the latter.
	ObjectiveAnswer Objective = "answer"
	// ObjectiveCompletion is the time to the last token alone.
	ObjectiveCompletion Objective = "completion"
	// ObjectiveSLO is the number of answers that miss their targets.
	ObjectiveSLO Objective = "slo"
)

// Objectives lists them all.
func Objectives() []Objective {
	return []Objective{ObjectiveAnswer, ObjectiveTTFT, ObjectiveCompletion, ObjectiveSLO}
}

// Known reports whether o is one of Objectives.
func (o Objective) Known() bool { return slices.Contains(Objectives(), o) }

// Targets are bounds that an answer must keep to be good. Zero asks nothing.
type Targets struct {
	// TTFT bounds the time from the request to its first token.
	TTFT time.Duration
	// TPOT bounds the mean time of each token after the first.
	TPOT time.Duration
}

// Set reports whether there is a target.
func (t Targets) Set() bool { return t.TTFT > 0 || t.TPOT > 0 }

// Or returns t with its unset fields taken from o.
func (t Targets) Or(o Targets) Targets {
	if t.TTFT == 0 {
		t.TTFT = o.TTFT
	}
	if t.TPOT == 0 {
		t.TPOT = o.TPOT
	}
	return t
}
