package waiting

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

const (
	// longPart is the share of a full step from which a prefill yields.
	longPart = 0.5
	// alikePart is the mean part of a request's own prefill from which on those before it are as long as it is.
	alikePart = 0.75
)

// yielding is how a request with much to prefill lets those pass whose first token its rank is about to write. A long
// prompt makes each step of the engine as long as a full one, and requests that are sent at about the same time
// reach the engine in any order: a request with next to nothing to compute would share that step, or wait for
// the whole prompt. Alone it has its first token after a short step, which costs the long one little.
// The zero value has yielded to none yet.
//
// Before others as long as itself it has nothing to yield to: one long prompt after the other, each alone, would have the engine run dry between
// them, where steps are short.
// A rank whose speed is a guess is left out: how long its steps take is not known. So are requests of which nothing but the end of the answer
// counts: see undisturbed.
type yielding struct {
	since time.Time
}

// to reports whether the request, which has room on the rank, waits for the requests on it, and counts the time from the
// first time that it does. It does so for a full step at most, so that a rank that is never without such requests
// delays it by no more than each long prompt delays them.
func (y *yielding) to(cand *decision.Candidate, now time.Time) bool {
	if cand.Waiting == 0 || cand.Prefill <= longPart*cand.FullStep || cand.Speed == decision.SpeedPrior || cand.Speed == decision.SpeedEngine {
		return false
	}
	if evaluate.ShortSteps(cand) && float64(cand.QueuedTokens) > alikePart*float64(cand.Waiting)*float64(cand.Uncached) {
		return false
	}
	if y.since.IsZero() {
		y.since = now
	}
	return now.Sub(y.since).Seconds() < cand.FullStep
}
