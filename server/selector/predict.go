package selector

import (
	"github.com/kvpilot/kvpilot/server/decision"
)

// predict fills what every policy may read of a candidate: its uncached tokens, the time to
// prefill them, and the time to the first token.
func predict(d *decision.Decision, c *decision.Candidate) {
	n := uncached(d, c)
	c.Uncached = uint32(n)
	c.Prefill = decision.PrefillTime(c.TokenTime, c.Bend, float64(d.PromptTokens)-n, n)
	c.TTFT = c.Backlog - c.Yields + c.Planned + c.Prefill*(1+c.Slowdown) + c.StepTime + c.Overhead
	if c.Requests > 0 && c.Waiting == 0 {
		c.TTFT += c.StepTime / 2 // a decode step runs, and half of it is left on average
	}
}

// uncached are the tokens to compute: at least the last one, however much the rank holds.
func uncached(d *decision.Decision, c *decision.Candidate) float64 {
	cached := float64(c.GPU) + d.Params.CPUCredit*float64(c.CPU) + d.Params.DiskCredit*float64(c.Disk)
	prompt := float64(d.PromptTokens)
	return min(prompt, max(prompt-cached, 1))
}

// Work predicts the candidate's Prefill before the choice.
func Work(d *decision.Decision, c *decision.Candidate) float64 {
	n := uncached(d, c)
	return decision.PrefillTime(c.TokenTime, c.Bend, float64(d.PromptTokens)-n, n)
}

// The weights of returns, docs/adr/006-predicted-time.md: half of those who find their rank
// prefilling wait it out, and about a third of requests have a next turn.
const (
	othersReturn = 0.5
	ownReturn    = 0.3
)

// blocked is the time that those who return to the rank would wait, all together, while it
// prefills this request. Nobody waits longer than prefilling elsewhere would take.
func blocked(c *decision.Candidate) float64 {
	wait := min(c.Prefill, c.Saved)
	return c.Returns * wait * (c.Prefill - wait/2)
}

// predicted prices a candidate by time: how long until the first token, its own uncached work
// weighted because others wait for it too, and how long the rank would make it wait for KV memory
// that is already promised to others. The weight is Omega, for the fleet, plus the rank's own Busy.
// Then come those who return to a rank for its cache: others, who may find it prefilling this
// request, and this request's own next turn, which may find it prefilling others.
func predicted(d *decision.Decision, c *decision.Candidate) float64 {
	cost := (c.Backlog-c.Yields+c.Planned+(d.Omega+c.Busy)*c.Prefill)*(1+c.Slowdown) + c.StepTime + c.Decode + c.Crowding
	cost += othersReturn*blocked(c) + ownReturn*c.Residual
	if c.Session {
		bonus := d.Params.SessionBonus
		if d.Keyless {
			// Nothing is known of the caches, but the last turn most likely still lies here.
			bonus += d.Omega * c.Prefill / 2
		}
		cost -= bonus
	}
	return cost
}
