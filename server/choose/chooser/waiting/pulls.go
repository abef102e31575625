package waiting

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

const (
	// mostPulls is how many copies a request waits for.
	mostPulls = 8
	// pullSlack is how much longer than twice the predicted time it waits for one.
	pullSlack = 250 * time.Millisecond
)

// pulling is how a request waits for copies of its prompt's beginning. A copy that does not come delays it by little more than the time that
// was predicted. The zero value has waited for none.
type pulling struct {
	to    replica.Slot
	until time.Time
	count int
}

// waits reports whether the request waits for the copy that s found.
func (p *pulling) waits(s *evaluate.Evaluation, now time.Time) bool {
	if to := s.Decision.Candidates[s.Pull.To].Slot; p.count == 0 || p.to != to {
		if p.count >= mostPulls {
			return false
		}
		p.count++
		p.to, p.until = to, now.Add(2*clock.Duration(s.Pull.Arrives)+pullSlack)
	}
	return now.Before(p.until)
}
