package waiting

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// pullSlack is how much longer than the predicted time to its first token without a copy a request waits for copies, at least.
const pullSlack = 100 * time.Millisecond

// pulling is how a request waits for copies of its prompt's beginning: no longer than it would have waited for its first token without them, as
// predicted when the first copy was cheaper. The zero value has waited for none.
type pulling struct {
	until time.Time
	// copy is the last one that it waited for, way its entry in the record.
	copy *transfer.Copy
	way  decision.Way
}

// waits reports whether the request waits for the copy that s found.
func (p *pulling) waits(s *evaluate.Evaluation, now time.Time) bool {
	if p.until.IsZero() {
		p.until = now.Add(clock.Duration(s.Decision.PredictedTTFT()) + pullSlack)
	}
	return now.Before(p.until)
}
