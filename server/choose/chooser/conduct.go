package chooser

import (
	"context"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// judgeAnswers compares the ranks with their equals until ctx ends.
func (c *Chooser) judgeAnswers(ctx context.Context) {
	c.judges.Store(true)
	defer c.judges.Store(false)
	tick := time.NewTicker(conduct.JudgeEvery / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if now := c.clock(); c.conduct.Due(now) {
				c.judgeConduct(now)
			}
		}
	}
}

// judgeUnlessRun compares the ranks with their equals when that is due and Run does not, as in virtual time.
func (c *Chooser) judgeUnlessRun(now time.Time) {
	if !c.judges.Load() && c.conduct.Due(now) {
		c.judgeConduct(now)
	}
}

// judgeConduct compares the ranks with their equals.
func (c *Chooser) judgeConduct(now time.Time) {
	ranks := *c.ranks.Load()
	usual := map[any]*usualSpeed{}
	for _, r := range ranks {
		if r == nil {
			continue
		}
		kind, _ := r.speed.Kind()
		u := usual[kind]
		if u == nil {
			u = &usualSpeed{}
			usual[kind] = u
		}
		u.add(r.model.Load(), r.conduct.About().Suspicions != 0)
	}
	for _, r := range ranks {
		if r == nil {
			continue
		}
		r.speed.Look(now)
		known := r.known.Load()
		kind, _ := r.speed.Kind()
		u := usual[kind]
		if u == nil { // it has just moved to another kind
			continue
		}
		m := u.median()
		l := c.params.Book.View(r.slot, now)
		budget := float64(defaultBudget)
		if known.MaxBatchedTokens > 0 {
			budget = float64(known.MaxBatchedTokens)
		}
		small := m.Step(smallLoad.Sequences, smallLoad.Context)
		r.conduct.Expect(m.Step(max(1, l.InFlight-l.Prefilling), l.ContextTokens)/small, m.Token/small, budget, now)
	}
	for _, change := range c.conduct.Judge(now) {
		c.conductChanged(change)
	}
}

// smallLoad is the load that the time of decodes is related to.
//
//nolint:gochecknoglobals // a constant
var smallLoad = speed.Decodes{Sequences: 8, Context: 16384}

// usualSpeed lists what the ranks of a kind take, as far as it matters for decodes: those that nothing is held against, if there are any.
type usualSpeed struct {
	token, base, load []float64
	suspects          bool
}

func (u *usualSpeed) add(m *speed.Model, suspect bool) {
	switch {
	case suspect && len(u.token) > 0 && !u.suspects:
		return
	case !suspect && u.suspects:
		*u = usualSpeed{}
	}
	u.suspects = suspect
	u.token, u.base, u.load = append(u.token, m.Token), append(u.base, m.Base), append(u.load, m.Load)
}

// median is the Model of a typical one; of two, the faster one's.
func (u *usualSpeed) median() speed.Model {
	middle := func(list []float64) float64 {
		slices.Sort(list)
		return list[(len(list)-1)/2]
	}
	return speed.Model{Token: middle(u.token), Base: middle(u.base), Load: middle(u.load)}
}

// conductChanged logs and counts a change of what is held against a rank.
func (c *Chooser) conductChanged(change conduct.Change) {
	for _, s := range conduct.Suspicions() {
		if change.After&s != 0 && change.Before&s == 0 {
			c.metrics.suspicions.Add(context.Background(), 1, suspicion(s))
		}
	}
	for _, r := range *c.ranks.Load() {
		if r == nil || r.conduct != change.Rank {
			continue
		}
		about := r.conduct.About()
		r.speed.Exclude(change.After&conduct.Slow != 0)
		if change.After == 0 {
			c.log.Info("a rank behaves as its equals again", "replica", string(r.replica), "rank", r.index)
			continue
		}
		c.log.Warn("a rank does not behave as its equals and is avoided", "replica", string(r.replica), "rank", r.index, "suspicions", change.After.Names(),
			"slowness", about.Slowness, "token_time", duration(about.Token), "empty_share", about.EmptyShare, "overlap_trust", about.Trust)
	}
	c.nudge()
}

// conducted sets what is held against a candidate's rank.
func conducted(cand *decision.Candidate, rk *rank, outputs float64, now time.Time) {
	if about := rk.avoided.Load(); about != nil {
		cand.Suspicions, cand.Slowness, cand.Trust = uint8(about.Suspicions), float32(about.Slowness), float32(about.Trust)
		cand.Drag = rk.conduct.Drag(outputs, now)
	}
}

// discount takes from a rank's overlap what its answers have shown to be no more than a claim.
func discount(cand *decision.Candidate, rk *rank) {
	about := rk.avoided.Load()
	if about == nil || about.Trust >= 1 {
		return
	}
	cand.Claimed = cand.Overlap.Tokens()
	size := max(cand.BlockSize, 1)
	for _, held := range [...]*uint32{&cand.GPU, &cand.CPU, &cand.Disk} {
		*held = uint32(float64(*held)*about.Trust) / size * size
	}
}

// watch enters the stream of a choice in the record of its rank's conduct. What another router or a caller reports is no evidence: it is
// not known when the engine gave what.
func (c *Choice) watch(req *Request, now time.Time) {
	if !c.streamed || c.leased || req.Quiet || req.Unstreamed {
		return
	}
	c.uneven = req.Uneven || req.AskedBy != "" // whether the clients of another router read is not known here
	c.rank.conduct.Enter(&c.stream, conduct.Work{Uncached: int(c.Decision.Pick().Uncached), Parallel: req.Samples, Uneven: c.uneven}, now)
	c.watched = true
}

// witness shows the rank's record what the answer was.
func (c *Choice) witness(now time.Time, output int, result *Result) {
	if c.rank == nil || c.adopted {
		return
	}
	whole := result.End == decision.EndCompleted
	known := !c.uneven || c.Decision.AskedBy == "" && !result.Counted && result.OutputTokens >= 0
	c.stream.End(now, output, whole && known)
	if !whole || c.external || result.ServedBy != "" {
		return
	}
	if c.watched && output > 0 {
		c.rank.conduct.Answered(output, c.Decision.ExpectedOutput)
	}
	if !result.Counted && result.CachedTokens >= 0 {
		c.rank.conduct.Claimed(c.claimed(), result.CachedTokens)
	}
}

// claimed is how much of the prompt the rank claimed to hold, in tokens, as far as that is known exactly.
func (c *Choice) claimed() int {
	c.mu.Lock()
	known := c.whole
	c.mu.Unlock()
	if known == nil && c.Decision.Estimated || c.Decision.Keyless || c.unread {
		return 0
	}
	return max(c.predictedCached(), int(c.Decision.Pick().Claimed))
}

// Writing notes that the client is being given something, or that this is over: time that a client takes to read is not the rank's.
func (c *Choice) Writing(yes bool) { c.stream.Writing(yes) }

// Emptied notes that the answer had nothing in it although another replica gave one for the same request.
func (c *Choice) Emptied() {
	if c.rank != nil && !c.leased {
		c.rank.conduct.Emptied(c.chooser.clock())
	}
}
