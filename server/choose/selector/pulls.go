package selector

import "github.com/kvpilot/kvpilot/server/domain/decision"

// Copying is the state of the copies between the candidates of a decision, in their order. The zero value has none.
type Copying struct {
	// Able is set when a part of the prompt may be copied from one rank to another.
	Able bool
	// Sharers is how many requests that wait begin with the prefix; they share the price of the cache that a copy displaces.
	Sharers int
	// Moves is set for a call of a program that leaves the rank with its context: it is worth a copy for this call alone.
	Moves bool
	// Traffic has the copies that each candidate takes part in; empty when no copy is under way.
	Traffic []Traffic
}

// Traffic is the part that a candidate takes in copies.
type Traffic struct {
	// Coming are the leading tokens of the prompt that are being copied to the candidate, and Arrives in how many seconds they are there.
	Coming  uint32
	Arrives float64
	// Sends is in how many seconds the copies that it is the source of end.
	Sends float64
	// Closed is set for a candidate that may be no target, Resting for one that may be no source either.
	Closed, Resting bool
	// Asked is set while a copy that the candidate is the source of has not begun to move: the engine has to see the request for it.
	Asked bool
}

// Pull is a way to serve a request on a rank that first gets a copy of the prompt's beginning from another one.
type Pull struct {
	// From and To are the places of the source and the target among the candidates; From is -1 when the copy is under way.
	From, To int
	// Held are the leading tokens that the target holds with the copy, Moved the tokens that it lacks now.
	Held, Moved uint32
	// Cost is the price, and Arrives in how many seconds the copy is there. Prefill is the time to compute the rest, in seconds.
	Cost, Arrives, Transfer, Prefill float64
	// Later is set when the source passes on another cache first: another rank may have the prefix before it could begin.
	Later bool
}

const (
	// leastCopied is the least number of tokens that are copied: less is computed about as fast.
	leastCopied = 1024
	// LeastSharers is how many requests that begin with a prefix must wait before it is copied. A copy for fewer displaces more than it
	// spares: docs/adr/038-copies-of-prefixes.md.
	LeastSharers = 4
)

const (
	// copyLoss bounds the price of the cache that a copied token displaces, as a share of the time to compute it.
	copyLoss = 0.05
	// laterWaits is for how many times its own transfer a copy may wait at its source. Otherwise another rank may have the prefix sooner, and
	// pass it on itself.
	laterWaits = 1
)

// Cheapest returns the cheapest way by a copy if it costs less than the price below; false for none. It needs the predictions of Choose
// under predicted-ttft.
func (c *Copying) Cheapest(d *decision.Decision, p *Pairing, below float64) (best Pull, ok bool) {
	if c.Sharers < LeastSharers && !c.Moves {
		return best, false
	}
	most := uint32(0)
	for i := range d.Candidates {
		if p.Members[i].Prefills {
			most = max(most, d.Candidates[i].GPU)
		}
	}
	if most < leastCopied && len(c.Traffic) == 0 {
		return best, false
	}
	c.sources(d, p, most)
	for i := range d.Candidates {
		cand, m := &d.Candidates[i], &p.Members[i]
		if !m.Decodes || cand.Veto != decision.VetoNone {
			continue
		}
		t := c.traffic(i)
		if t.Coming > cand.GPU {
			one := Pull{From: -1, To: i, Held: t.Coming, Arrives: t.Arrives}
			if one.price(d, cand, c.Sharers); one.Cost < below {
				best, below, ok = one, one.Cost, true
			}
			continue
		}
		if t.Closed {
			continue
		}
		for k := range p.Classes {
			one, can := c.copied(d, p, k, i, most)
			if !can {
				continue
			}
			if one.price(d, cand, c.Sharers); one.Cost < below {
				best, below, ok = one, one.Cost, true
			}
		}
	}
	return best, ok
}

// copied is a copy from the best source of a class to a candidate, without its price; false for none. It needs sources.
func (c *Copying) copied(d *decision.Decision, p *Pairing, class, to int, most uint32) (one Pull, ok bool) {
	cand, m := &d.Candidates[to], &p.Members[to]
	from, lead := p.best[class].not(p.Members, m.Owner)
	if from < 0 {
		return one, false
	}
	lane, source := &p.Lanes[class*p.Classes+int(m.Class)], &d.Candidates[from]
	if lane.Closed || source.GPU < cand.GPU+leastCopied {
		return one, false
	}
	one = Pull{From: from, To: to, Held: source.GPU, Moved: source.GPU - cand.GPU}
	one.Transfer = lane.seconds(float64(one.Moved))
	one.Later = c.traffic(from).Sends > ready(source)+lane.Start+laterWaits*one.Transfer
	one.Arrives = lead - c.lacks(source, most) + one.Transfer
	return one, true
}

// sources finds the best sources of each class: they could send soonest, and tokens that they lack count as computed.
func (c *Copying) sources(d *decision.Decision, p *Pairing, most uint32) {
	if len(p.best) < p.Classes {
		p.best = make([]prefillers, p.Classes)
	}
	for k := range p.best[:p.Classes] {
		p.best[k] = prefillers{first: -1, second: -1}
	}
	for i := range d.Candidates {
		cand, m := &d.Candidates[i], &p.Members[i]
		if !m.Prefills || cand.GPU < leastCopied || !passesOn(cand) {
			continue
		}
		t := c.traffic(i)
		if t.Resting {
			continue
		}
		lead := max(ready(cand), t.Sends)
		p.best[m.Class].offer(p.Members, i, lead+c.lacks(cand, most))
	}
}

// passesOn reports whether a candidate may be a source: also one that does not answer, or that has no memory for the program.
func passesOn(c *decision.Candidate) bool {
	return c.Veto == decision.VetoNone || c.Veto == decision.VetoRole || c.Veto == decision.VetoMemory
}

// ready is in how many seconds a source could begin to send. The requests that wait in the router for it come after that.
func ready(c *decision.Candidate) float64 { return c.Backlog*(1+c.Slowdown) + c.StepTime + c.Overhead }

func (c *Copying) lacks(cand *decision.Candidate, most uint32) float64 {
	return float64(most-min(most, cand.GPU)) * cand.TokenTime
}

func (c *Copying) traffic(i int) Traffic {
	if len(c.Traffic) == 0 {
		return Traffic{}
	}
	return c.Traffic[i]
}

// Way is the copy in the record, without its source where it is under way.
func (p *Pull) Way(d *decision.Decision) decision.Way {
	to := &d.Candidates[p.To]
	w := decision.Way{
		Decode: to.RankID, Held: p.Held, Moved: p.Moved, Cost: p.Cost, TTFT: p.ttft(to), Queue: to.Backlog + to.Planned, Compute: p.Prefill * (1 + to.Slowdown),
		Transfer: p.Arrives, Copy: true,
	}
	if p.From >= 0 {
		w.Prefill = d.Candidates[p.From].RankID
	}
	return w
}

// late is how much longer the copy takes than the work that its target has, in seconds.
func (p *Pull) late(c *decision.Candidate) float64 {
	return max(0, p.Arrives+c.StepTime+c.Overhead-queue(c))
}

// ttft is the predicted time to the first token.
func (p *Pull) ttft(c *decision.Candidate) float64 {
	return c.Backlog + c.Planned + p.Prefill*(1+c.Slowdown) + p.late(c) + c.StepTime + c.Overhead
}

// price fills in the price on the target.
func (p *Pull) price(d *decision.Decision, c *decision.Candidate, sharers int) {
	rest := max(1, float64(d.PromptTokens)-float64(p.Held))
	p.Prefill = decision.PrefillTime(c.TokenTime, c.Bend, float64(d.PromptTokens)-rest, rest)
	with := paceOf(c)
	with.prefill = p.Prefill
	without := *c // with the copy, nothing is loaded
	without.Loading = decision.Loading{}
	p.Cost = predicted(d, &without, with) + p.late(c)
	if d.Objective == decision.ObjectiveSLO {
		if c.Late > 0 {
			p.Cost -= lateCost * (1 + c.Late)
		}
		p.Cost += lateness(d, p.ttft(c), c.TPOT)
	}
	p.Cost += p.displaced(c) / float64(sharers)
}

// displaced is the price of the cache that the copy displaces on its target, in seconds.
func (p *Pull) displaced(c *decision.Candidate) float64 {
	return float64(p.Moved) * c.TokenTime * min(copyLoss, c.Returns*c.Saved/max(c.Busy, leastBusy))
}
