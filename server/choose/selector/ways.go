package selector

import (
	"math"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Pairing says which candidates of a decision may serve each other. Its slices have the order of the candidates, and classes count from
// zero: ranks of one class can read the same caches, over the same networks.
type Pairing struct {
	// Members has each candidate's place.
	Members []Member
	// Lanes has, at from·Classes+to, the transfer from a rank of one class to one of another.
	Lanes   []Lane
	Classes int
	// Above, when set, has a threshold in place of the prices say whether a request is split.
	Above *Threshold

	best []prefillers // of each class; scratch
}

// Member is a candidate's place in a Pairing.
type Member struct {
	// Owner is the same for the ranks of one replica.
	Owner int32
	// Class is -1 for a rank without a connector.
	Class             int16
	Prefills, Decodes bool
}

// Lane predicts a transfer: its start, and each token, in seconds. Closed says that there is none.
type Lane struct {
	Start, PerToken float64
	Closed          bool
}

// Threshold splits requests of which the rank that would serve them whole has so much to compute, as other routers do: at least Tokens, and at
// least Share of the prompt.
type Threshold struct {
	Tokens int
	Share  float64
}

func (t *Threshold) splits(d *decision.Decision, uncached uint32) bool {
	return int(uncached) >= t.Tokens && float64(uncached) >= t.Share*float64(d.PromptTokens)
}

// prefillers are the cheapest candidate of a class that may prefill, and the cheapest one of another replica; -1 for none.
type prefillers struct {
	first, second         int
	firstCost, secondCost float64
}

func (p *prefillers) offer(members []Member, i int, cost float64) {
	switch {
	case p.first < 0 || cost < p.firstCost:
		if p.first >= 0 && members[p.first].Owner != members[i].Owner {
			p.second, p.secondCost = p.first, p.firstCost
		}
		p.first, p.firstCost = i, cost
	case members[i].Owner != members[p.first].Owner && (p.second < 0 || cost < p.secondCost):
		p.second, p.secondCost = i, cost
	}
}

// not returns the cheapest one of another replica than owner.
func (p *prefillers) not(members []Member, owner int32) (i int, cost float64) {
	if p.first >= 0 && members[p.first].Owner != owner {
		return p.first, p.firstCost
	}
	return p.second, p.secondCost
}

// leastGain is the least predicted gain in seconds, and the least share of the price, for which a request is split: each leg is one more
// request that may fail.
const (
	leastGain      = 0.002
	leastGainShare = 0.02
)

// LeastGain is the least gain in seconds over a price for which KV cache is moved.
func LeastGain(cost float64) float64 { return max(leastGain, leastGainShare*math.Abs(cost)) }

// Split compares serving the request whole on the pick with the cheapest way to prefill on one candidate and decode on another, and takes
// that one when it costs less, or no more than Params.SplitBonus above it: the pick becomes the candidate that decodes. It fills Ways, into the memory of ways. It needs the pick of
// Choose under predicted-ttft.
func Split(d *decision.Decision, p *Pairing, ways []decision.Way) {
	d.Ways = nil
	pick := d.Pick()
	if pick == nil || d.Policy != decision.PredictedTTFT {
		return
	}
	whole := decision.Way{
		Prefill: pick.RankID, Decode: pick.RankID, Held: pick.Overlap.Tokens(), Cost: pick.Cost, TTFT: pick.TTFT,
		Queue: pick.Backlog + pick.Planned, Compute: pick.Prefill * (1 + pick.Slowdown),
	}
	from, to, cost := p.cheapest(d)
	if from < 0 {
		d.Ways = append(ways[:0], whole)
		return
	}
	split := p.way(d, from, to, cost)
	gain := whole.Cost - cost + d.Params.SplitBonus
	gains := gain >= LeastGain(whole.Cost)
	if p.Above != nil {
		gains = p.Above.splits(d, pick.Uncached)
	}
	if !gains {
		d.Ways = append(ways[:0], whole, split)
		return
	}
	d.Ways = append(ways[:0], split, whole)
	d.Chosen, d.Reason, d.Margin = to, decision.ReasonSplit, gain
}

// cheapest returns the candidates of the cheapest split, -1 when there is none.
func (p *Pairing) cheapest(d *decision.Decision) (from, to int, cost float64) {
	from, to, cost = -1, -1, math.Inf(1)
	if len(p.best) < p.Classes {
		p.best = make([]prefillers, p.Classes)
	}
	best := p.best[:p.Classes]
	for k := range best {
		best[k] = prefillers{first: -1, second: -1}
	}
	for i := range d.Candidates {
		c, m := &d.Candidates[i], &p.Members[i]
		if m.Prefills && (c.Veto == decision.VetoNone || c.Veto == decision.VetoRole) {
			best[m.Class].offer(p.Members, i, ahead(d, c))
		}
	}
	for i := range d.Candidates {
		c, m := &d.Candidates[i], &p.Members[i]
		if !m.Decodes || c.Veto != decision.VetoNone {
			continue
		}
		rest := behind(d, c)
		if rest >= cost {
			continue
		}
		for k := range best {
			lane := &p.Lanes[k*p.Classes+int(m.Class)]
			by, lead := best[k].not(p.Members, m.Owner)
			if by < 0 || lane.Closed {
				continue
			}
			total := rest + max(lead+lane.seconds(moved(d, c)), queue(c))
			if d.Objective == decision.ObjectiveSLO {
				total += lateness(d, p.ttft(d, by, i), c.TPOT)
			}
			if total < cost {
				from, to, cost = by, i, total
			}
		}
	}
	return from, to, cost
}

// ahead is the price of a candidate's computing of the prompt for another one, until the transfer can begin: the terms of predicted
// without the terms of the answer.
func ahead(d *decision.Decision, c *decision.Candidate) float64 {
	weight := weight(d, c)
	cost := (c.Backlog+c.Planned+weight*c.Prefill)*(1+c.Slowdown) + loading(d, c, weight) + c.StepTime + c.Overhead + c.Crowding + c.Drag
	return cost + othersReturn*blocked(c, c.Prefill) + disturbed(d, c, occupied(c, c.Prefill)) + adapting(d, c)
}

// behind is the price of a candidate's answer once it has the cache: the terms of predicted without the terms of the prompt.
func behind(d *decision.Decision, c *decision.Candidate) float64 {
	cost := c.StepTime + c.Decode + c.Crowding + c.Drag + d.Returning*c.Residual + slowed(d, c) + displaced(d, c) + adapting(d, c) + disturbed(d, c, float64(c.AdapterLoad))
	if c.Session {
		cost -= d.Params.SessionBonus
	}
	return cost
}

// leastBusy bounds the price of displaced cache on a rank that computes next to nothing.
const leastBusy = 0.02

// displaced is the price of the memory for the tokens that a candidate reads. Each displaced token is worth the time that the rank's cache
// spares others, over the tokens that the rank computes.
func displaced(d *decision.Decision, c *decision.Candidate) float64 {
	return moved(d, c) * c.TokenTime * c.Returns * c.Saved / max(c.Busy, leastBusy)
}

// queue is the time until a candidate has prefilled what it has; the prompt is computed elsewhere at the same time.
func queue(c *decision.Candidate) float64 { return (c.Backlog + c.Planned) * (1 + c.Slowdown) }

// moved are the tokens that a candidate reads: the tokens that it does not hold.
func moved(d *decision.Decision, c *decision.Candidate) float64 {
	return max(0, float64(d.PromptTokens)-float64(c.GPU))
}

func (l *Lane) seconds(tokens float64) float64 { return l.Start + l.PerToken*tokens }

// lateness is the price of targets that a split misses.
func lateness(d *decision.Decision, ttft, tpot float64) float64 {
	late := 0.0
	if t := d.Targets.TTFT.Seconds(); t > 0 {
		late = max(late, (d.Waited.Seconds()+ttft)/t-1)
	}
	if t := d.Targets.TPOT.Seconds(); t > 0 {
		late = max(late, tpot/t-1)
	}
	if late <= 0 {
		return 0
	}
	return lateCost * (1 + late)
}

// ttft is the predicted time to the first token of a split.
func (p *Pairing) ttft(d *decision.Decision, from, to int) float64 {
	f, c := &d.Candidates[from], &d.Candidates[to]
	lead := f.Backlog + f.Planned + f.Load + f.Prefill*(1+f.Slowdown) + f.StepTime + f.Overhead
	return max(lead+p.lane(from, to).seconds(moved(d, c)), c.Backlog+c.Planned) + c.StepTime + c.Overhead
}

func (p *Pairing) lane(from, to int) *Lane {
	return &p.Lanes[int(p.Members[from].Class)*p.Classes+int(p.Members[to].Class)]
}

// way is a split in the record.
func (p *Pairing) way(d *decision.Decision, from, to int, cost float64) decision.Way {
	f, c := &d.Candidates[from], &d.Candidates[to]
	return decision.Way{
		Prefill: f.RankID, Decode: c.RankID, Held: f.Overlap.Tokens(), Moved: uint32(moved(d, c)), Cost: cost, TTFT: p.ttft(d, from, to),
		Queue: f.Backlog + f.Planned, Compute: f.Prefill * (1 + f.Slowdown), Transfer: p.lane(from, to).seconds(moved(d, c)),
	}
}
