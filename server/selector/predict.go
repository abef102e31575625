package selector

import (
	"github.com/kvpilot/kvpilot/server/decision"
)

// predict fills what every policy may read of a candidate: its uncached tokens, the time to
// prefill them, and the time to the first token.
func predict(d *decision.Decision, c *decision.Candidate) {
	cached := float64(c.GPU) + d.Params.CPUCredit*float64(c.CPU) + d.Params.DiskCredit*float64(c.Disk)
	prompt := float64(d.PromptTokens)
	// The engine always computes the last token, however much it holds.
	uncached := min(prompt, max(prompt-cached, 1))
	c.Uncached = uint32(uncached)
	c.Prefill = PrefillTime(c.TokenTime, c.Bend, prompt-uncached, uncached)
	c.TTFT = (c.Backlog+c.Planned+c.Prefill)*(1+c.Slowdown) + c.StepTime
}

// PrefillTime is the time to prefill n tokens after context tokens that are already there:
// linear in n but for attention, which makes a token at context bend cost twice one at zero.
// A bend of zero means that attention is not modelled.
func PrefillTime(perToken, bend, context, n float64) float64 {
	t := perToken * n
	if bend > 0 {
		t *= 1 + (context+n/2)/bend
	}
	return t
}

// predicted prices a candidate by time: how long until the first token, its own uncached work
// weighted because others wait for it too, and how long the rank would make it wait for KV memory
// that is already promised to others. The weight is Omega, for the fleet, plus the rank's own
// Busy, for those who will come back to what this rank holds and find it prefilling.
func predicted(d *decision.Decision, c *decision.Candidate) float64 {
	cost := (c.Backlog+c.Planned+(d.Omega+c.Busy)*c.Prefill)*(1+c.Slowdown) + c.StepTime + c.Decode + c.Crowding
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
