package waiting

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
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

// sharers counts the requests of a line that begin with the same prefix, by the prefix. It is used under the line's visiting.
type sharers struct{ last, now map[blockhash.Hash]int }

// begin begins a visit.
func (sh *sharers) begin() {
	sh.last, sh.now = sh.now, sh.last
	clear(sh.now)
}

// count counts a request of the visit, and returns how many there are: in this visit so far, or in the last one.
func (sh *sharers) count(key blockhash.Hash) int {
	if sh.now == nil {
		sh.now = map[blockhash.Hash]int{}
	}
	sh.now[key]++
	return max(sh.now[key], sh.last[key])
}
