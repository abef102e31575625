package selector

import (
	"math"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// predict fills the fields of a candidate that every policy may read: its uncached tokens, the time to
// prefill them, and the time to the first token.
func predict(d *decision.Decision, c *decision.Candidate) {
	n := uncached(d, c)
	c.Uncached = uint32(n)
	c.Prefill = decision.PrefillTime(c.TokenTime, c.Bend, float64(d.PromptTokens)-n, n)
	c.TTFT = c.Backlog + c.Planned + c.Load + c.Prefill*(1+c.Slowdown) + c.StepTime + c.Overhead
	if d.Adapter != "" {
		c.TTFT += c.AdapterTime()
	}
	if c.Requests > 0 && c.Waiting == 0 {
		c.TTFT += c.StepTime / 2 // a decode step runs, and half of it is left on average
	}
	c.TPOT = c.StepTime
	if c.FullStep > c.StepTime && c.StepTime > 0 {
		// A share Busy of the time goes by in full steps, the rest in plain ones: 1 / (busy/FullStep + (1-busy)/StepTime).
		busy := min(c.Busy, 1)
		c.TPOT = c.FullStep * c.StepTime / (busy*c.StepTime + (1-busy)*c.FullStep)
	}
	if c.Late = 0; !d.Targets.Set() {
		return
	}
	if t := d.Targets.TTFT.Seconds(); t > 0 {
		c.Late = max(c.Late, (d.Waited.Seconds()+c.TTFT)/t-1)
	}
	if t := d.Targets.TPOT.Seconds(); t > 0 {
		c.Late = max(c.Late, c.TPOT/t-1)
	}
}

// uncached are the tokens to compute: at least the last one, however much the rank holds.
func uncached(d *decision.Decision, c *decision.Candidate) float64 {
	cached := float64(c.GPU) + float64(c.Loadable)
	prompt := float64(d.PromptTokens)
	return min(prompt, max(prompt-cached, 1))
}

// othersReturn is the weight of others' returns, docs/adr/006-predicted-time.md: half of the requests that find their rank
// prefilling wait it out. The weight of the request's own next turn is how likely it is.
const othersReturn = 0.5

// blocked is the time that requests that return to the rank would wait, all together, while it
// prefills this request. No request waits longer than prefilling elsewhere would take.
func blocked(c *decision.Candidate, prefill float64) float64 {
	wait := min(prefill, c.Saved)
	return c.Returns * wait * (prefill - wait/2)
}

// lateCost is the cost in seconds of missing a target: more than any queue.
const lateCost = 3600

// predictedTTFT takes the rank with the shortest predicted time, by the cost of predicted.
type predictedTTFT struct{}

// Select implements policy. Choose has set the costs, with the predictions.
func (predictedTTFT) Select(d *decision.Decision, throw dice, _ int) (decision.Reason, dice) {
	level(d)
	return cacheReason(d), throw
}

// pace is how fast a candidate is for the request.
type pace struct{ prefill, step, slowdown float64 }

func paceOf(c *decision.Candidate) pace { return pace{c.Prefill, c.StepTime, c.Slowdown} }

// alike is the share by which the learned speeds of idle ranks may differ where they count as the same.
const alike = 0.15

// level prices idle candidates with speeds like the cheapest one's, and as much to compute, by its speeds: so small a difference is
// chance, but all light load would go to the candidate that looks faster, and the others would never show better.
func level(d *decision.Decision) {
	var best *decision.Candidate
	for i := range d.Candidates {
		if c := &d.Candidates[i]; c.Veto == decision.VetoNone && (best == nil || c.Cost < best.Cost) {
			best = c
		}
	}
	if best == nil || !idle(best) {
		return
	}
	p := paceOf(best)
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if c != best && c.Veto == decision.VetoNone && c.Uncached == best.Uncached && idle(c) && near(c.TokenTime, best.TokenTime) && near(c.StepTime, best.StepTime) {
			c.Cost = predicted(d, c, p)
		}
	}
}

func idle(c *decision.Candidate) bool { return c.Requests == 0 && c.Backlog == 0 && c.Planned == 0 }

func near(a, b float64) bool { return math.Abs(a-b) <= alike*b }

// predicted prices a candidate by time: how long until the first token, its own uncached work with
// the weight of all requests that wait for it, and how long the rank would make it wait for KV memory
// that is already promised to others. The requests that decode on the rank have the price of disturbed.
// A second of a load from a tier below the GPU is priced as a second of prefill: docs/adr/039-price-of-a-tier.md.
// Then come requests that return to a rank for its cache: others, which may find it prefilling this
// request, and this request's own next turn, which may find it prefilling others.
func predicted(d *decision.Decision, c *decision.Candidate, p pace) float64 {
	weight := weight(d, c)
	cost := (c.Backlog+c.Planned+weight*p.prefill)*(1+p.slowdown) + loading(d, c, weight) + p.step + c.Decode + c.Crowding + c.Drag
	cost += othersReturn*blocked(c, p.prefill) + d.Returning*c.Residual + disturbed(d, c, occupied(c, p.prefill)) + slowed(d, c) + adapting(d, c)
	if c.Session {
		bonus := d.Params.SessionBonus
		if d.Keyless {
			// Nothing is known of the caches, but the last turn most likely still lies here.
			bonus += d.Omega * p.prefill / 2
		}
		cost -= bonus
	}
	if d.Objective == decision.ObjectiveSLO && c.Late > 0 {
		cost += lateCost * (1 + c.Late)
	}
	return cost
}

// weight is the price of a second of prefill: the request's own wait, Omega for the requests that wait in the fleet and Busy for the rank's own.
// Others count by the rank's speed, since in a second of a fast rank more of them could be computed.
func weight(d *decision.Decision, c *decision.Candidate) float64 {
	return 1 + (d.Params.Congestion*(d.Omega-1)+c.Busy)*speed(d, c)
}

// loading is the price of a load: of its seconds, as of as many of prefill.
func loading(d *decision.Decision, c *decision.Candidate, weight float64) float64 {
	if c.Load == 0 {
		return 0
	}
	return float64(c.LoadWait) + weight*c.OwnLoad()
}

// adapting is the price of the request's LoRA adapter: the time until the engine has it, and the cost of bringing back the adapter that
// leaves for it.
func adapting(d *decision.Decision, c *decision.Candidate) float64 {
	if d.Adapter == "" {
		return 0
	}
	return c.AdapterTime() + float64(c.AdapterLoss)
}

// occupied is the time in seconds that a rank spends on the request instead of on the answers it writes.
func occupied(c *decision.Candidate, prefill float64) float64 {
	time := prefill + float64(c.AdapterLoad)
	if c.Load > 0 {
		time += c.OwnLoad()
	}
	return time
}

const (
	// longPrompt is the length in tokens of a prompt from which each second costs Interference of a second for each answer that it delays.
	longPrompt = 32000
	// manyAnswers is the number of answers that cost half as much together as one by one. However many there are, they cost less than this
	// number one by one.
	manyAnswers = 25
)

// disturbed is the price of that time for those answers: each full step of prefill delays them all by one step. A second of a shorter prompt
// costs less. Short prompts are many and everywhere, and their costs even out; few long ones decide which answers are late. However many answers
// are delayed, the price is at most 25 times Interference of the time where speeds are equal: a long prompt would otherwise wait out any queue where few are written.
// Where no client sees its first token, it may (docs/adr/017-whole-answer.md). Both the time and the answers count by the rank's speed: otherwise
// fast ranks took nearly all prompts. Where the request may be split, few answers weigh more, so that
// prefill gathers on ranks that write few: docs/adr/036-price-of-a-split.md.
func disturbed(d *decision.Decision, c *decision.Candidate, time float64) float64 {
	n, s := decoding(c), speed(d, c)
	work := s * time
	if d.Splittable {
		n *= s
		return d.Params.Interference * (1.25*math.Sqrt(n) + n/3.2) * work
	}
	if long := longPrompt * c.TokenTime; time < long {
		n *= time / long
	}
	price := d.Params.Interference * s * n * work
	if !d.Whole {
		price /= 1 + n/manyAnswers
	}
	return price
}

// answerWeight is the weight of a second by which the steps that prefill other prompts delay the answer of a request that may be split, at the
// default interference.
const answerWeight = 1.5

// slowed is the price of those steps.
func slowed(d *decision.Decision, c *decision.Candidate) float64 {
	if !d.Splittable {
		return 0
	}
	return answerWeight * d.Params.Interference / usualInterference * float64(d.ExpectedOutput) * (c.TPOT - c.StepTime)
}

// decoding is the number of requests that decode on the rank.
func decoding(c *decision.Candidate) float64 {
	return max(0, float64(c.Requests)-float64(c.Waiting))
}

// speed is the rank's prefill rate over the fleet's mean.
func speed(d *decision.Decision, c *decision.Candidate) float64 {
	if d.Rate <= 0 || c.TokenTime <= 0 {
		return 1
	}
	return 1 / (c.TokenTime * d.Rate)
}

const (
	// clockNoise is the difference in seconds below which costs are equal, rateNoise the largest share
	// of a prefill by which they may differ and be equal when its rate is uncertain.
	clockNoise = 0.0005
	rateNoise  = 0.03
)

// noise is by how much more than c another candidate may cost and be as good: the knowledge of their speeds does not distinguish them.
func noise(d *decision.Decision, c *decision.Candidate) float64 {
	if d.Policy != decision.PredictedTTFT {
		return 0
	}
	return clockNoise + min(c.Spread/2, rateNoise)*c.Prefill
}
