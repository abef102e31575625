package selector

import "github.com/kvpilot/kvpilot/server/domain/decision"

// Fork is how a call is expected to be forked: with the probability Share, Children calls begin with its whole prompt.
type Fork struct{ Share, Children float64 }

// fullMemory is the share of a rank's cache that the requests on it and a copy ahead of requests may take. Above it the copy may make them wait.
const fullMemory = 0.9

// Ahead returns the copy of the decision's prompt that is made next for the calls that are expected to begin with it; false when none is worth it. It
// needs the predictions of Choose under predicted-ttft. barred has the candidates that may get none.
//
// A copy spares the calls that its target serves the wait for one after the fork. They are spread over the ranks with the prompt, so each copy is worth
// less than the one before. It costs a step of both ranks, the cache that it displaces, and, without a fork, the time of both links.
func (c *Copying) Ahead(d *decision.Decision, p *Pairing, fork Fork, barred func(i int) bool) (best Pull, ok bool) {
	most, holders := uint32(0), 0.0
	for i := range d.Candidates {
		if p.Members[i].Prefills {
			most = max(most, d.Candidates[i].GPU)
		}
	}
	if most < leastCopied {
		return best, false
	}
	for i := range d.Candidates {
		if max(d.Candidates[i].GPU, c.traffic(i).Coming)+leastCopied > most {
			holders++
		}
	}
	c.sources(d, p, most)
	for i := range d.Candidates {
		if !p.Members[i].Decodes || d.Candidates[i].Veto != decision.VetoNone || c.traffic(i).Closed || barred(i) {
			continue
		}
		for class := range p.Classes {
			one, can := c.copied(d, p, class, i, most)
			if !can || one.Later || ok && one.Arrives >= best.Arrives || !one.fits(d) {
				continue
			}
			from, to := &d.Candidates[one.From], &d.Candidates[i]
			steps := from.StepTime + to.StepTime
			gain := fork.Share * fork.Children / (holders + 1) * (one.Transfer + from.StepTime + from.Overhead)
			if gain > one.displaced(to)+steps+(1-fork.Share)*one.Transfer {
				best, ok = one, true
			}
		}
	}
	return best, ok
}

// fits reports whether the target has memory for the copy next to its requests, as far as that is known.
func (p *Pull) fits(d *decision.Decision) bool {
	to := &d.Candidates[p.To]
	return to.Blocks == 0 || to.BlockSize == 0 || to.DecodeBlocks+float64(p.Moved/to.BlockSize) <= fullMemory*float64(to.Blocks)
}
