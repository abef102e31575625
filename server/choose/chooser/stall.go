package chooser

import (
	"context"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// StallConfig says when a rank that has requests and shows no sign of life is avoided, though its replica is
// healthy by its own word.
type StallConfig struct {
	// After is the shortest time without output, while the engine's counters do not change, after which a rank with
	// requests is stalled; five times as long where its counters are not read. A rank that was silent for longer
	// before, or whose prefill was predicted to take longer, gets more time. Zero: stalls are not detected, and
	// bookings of external callers are not doubted.
	After time.Duration `yaml:"after"`
	// Unhealthy is how long a stream may wait for a replica that is unhealthy and silent. Then the stream ends with an
	// error, or is resumed on another replica (router.resume_streams). Zero: without limit.
	Unhealthy time.Duration `yaml:"unhealthy"`
}

// keepVigil looks at the ranks until ctx ends.
func (c *Chooser) keepVigil(ctx context.Context) {
	if c.params.Vitals == nil {
		return
	}
	tick := time.NewTicker(vigilPeriod)
	defer tick.Stop()
	last := c.clock()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if c.settings.Load().config.Stall.After == 0 {
			continue
		}
		now := c.clock()
		// When this process was held up, so was everybody's news: that time counts as one look.
		passed := min(now.Sub(last), 2*vigilPeriod)
		last = now
		c.lookAround(now, passed)
	}
}

// lookAround judges every rank once.
func (c *Chooser) lookAround(now time.Time, passed time.Duration) {
	ranks := *c.ranks.Load()
	vitals := make([]Vitals, len(ranks))
	var best, second time.Time // the last answers to health questions, of two replicas that are not late
	var answered replica.ID
	for slot, r := range ranks {
		if r == nil {
			continue
		}
		v := &vitals[slot]
		*v = c.params.Vitals(replica.Slot(slot), now)
		switch {
		case v.Late >= lateAfter, r.replica == answered:
		case v.Answered.After(best):
			best, second, answered = v.Answered, best, r.replica
		case v.Answered.After(second):
			second = v.Answered
		}
	}
	for slot, r := range ranks {
		if r == nil {
			continue
		}
		elsewhere := best
		if r.replica == answered {
			elsewhere = second
		}
		c.judge(r, &vitals[slot], now, passed, elsewhere)
		c.doubt(r, &vitals[slot], now)
	}
}

// judge gives a rank its verdict and moves what must not wait there.
func (c *Chooser) judge(r *rank, v *Vitals, now time.Time, passed time.Duration, elsewhere time.Time) {
	w := &r.vigil
	slack := float64(slackUnknown)
	if r.speed.Model().Samples > 0 {
		slack = slackKnown
	}
	before := Evidence(w.evidence.Load())
	set := c.settings.Load().config.Stall
	verdict := w.look(v, now, passed, set.After, slack, elsewhere)
	if verdict >= EvidenceCounters && w.over == passed { // it has just fallen
		w.pause = min(max(firstPause, 2*w.pause), lastPause)
		w.until.Store(c.since(now.Add(w.pause)))
	}
	if verdict != EvidenceNone {
		w.silent.Store(int64(w.silence))
	}
	if verdict != before {
		w.evidence.Store(uint32(verdict))
		c.verdict(r, before, verdict)
	}
	sick := v.Unhealthy && set.Unhealthy > 0 && w.sick >= set.Unhealthy
	if w.over == 0 && !sick {
		return
	}
	for _, choice := range w.movable(sick) {
		if begun := choice.begun(); begun && sick || !begun && c.goesElsewhere(choice, now) {
			choice.forsake(begun)
		}
	}
}

// verdict tells operators.
func (c *Chooser) verdict(r *rank, before, now Evidence) {
	if now == EvidenceNone {
		c.log.Info("a stalled rank has recovered", "replica", string(r.replica), "rank", r.index)
		c.nudge()
		return
	}
	c.metrics.stalled(now)
	if before == EvidenceNone {
		c.log.Warn("a rank with requests has stalled and is avoided", "replica", string(r.replica), "rank", r.index,
			"evidence", now.String(), "silent", r.vigil.silence, "requests", r.vigil.flying.Load())
	}
	c.nudge()
}

// goesElsewhere reports whether another replica could take the request of a choice.
func (c *Chooser) goesElsewhere(choice *Choice, now time.Time) bool {
	at := c.since(now)
	for i := range choice.Decision.Candidates {
		o := &choice.Decision.Candidates[i]
		if o.Replica == choice.Replica.ID || o.Veto != decision.VetoNone && o.Veto != decision.VetoStalled {
			continue
		}
		if r := c.rank(o.Slot); r != nil && !r.vigil.avoided(at) {
			return true
		}
	}
	return false
}

// avoid vetoes the ranks that are stalled, unless all are.
func (c *Chooser) avoid(d *decision.Decision, now time.Time) {
	at := c.since(now)
	stalled, left := 0, 0
	for i := range d.Candidates {
		cand := &d.Candidates[i]
		if cand.Veto != decision.VetoNone {
			continue
		}
		if r := c.rank(cand.Slot); r != nil && r.vigil.avoided(at) {
			stalled++
		} else {
			left++
		}
	}
	if stalled == 0 || left == 0 {
		return
	}
	for i := range d.Candidates {
		cand := &d.Candidates[i]
		if r := c.rank(cand.Slot); cand.Veto == decision.VetoNone && r != nil && r.vigil.avoided(at) {
			cand.Veto, cand.Silent = decision.VetoStalled, time.Duration(r.vigil.silent.Load()).Seconds()
		}
	}
}

// panicFor is how long replicas that nothing comes back from are used all the same, when they are most of a pool.
const panicFor = time.Minute

// MostMute reports whether most of a pool's replicas became unhealthy lately for the sole reason that nothing came back from
// their probes: rather than all of them, this machine or its network may be at fault, so they stay in use for a while.
func MostMute(replicas []*replica.Replica, now time.Time) bool {
	mute, others := 0, 0
	for _, r := range replicas {
		switch {
		case r.Mute && r.State == replica.StateUnhealthy && now.Sub(r.Since) < panicFor:
			mute++
		case r.State == replica.StateReady, r.State == replica.StateUnhealthy:
			others++
		}
	}
	return mute > others
}

// takeOff adds a booked choice to those in flight on its rank, where they are this process's own: of a lease's holder
// nobody knows whether the request was sent.
func (c *Choice) takeOff(req *Request, prefill, decode float64) {
	if c.rank == nil || req.Quiet {
		return
	}
	c.prefills, c.decodes, c.abandon, c.movable = prefill, decode, req.Abandon, req.Movable
	if c.leased {
		c.rank.vigil.lend(c)
		return
	}
	c.rank.vigil.enter(c)
	c.inFlight = true
}

// land takes it off again; answered says that the engine gave an answer.
func (c *Choice) land(answered bool) {
	if c.rank == nil {
		return
	}
	if answered {
		c.rank.vigil.sign()
	}
	if c.inFlight {
		c.rank.vigil.leave(c)
	}
	if c.leased {
		c.rank.vigil.regain(c)
	}
}

// Alive says that something came from the engine for this request.
func (c *Choice) Alive() {
	if c.rank != nil {
		c.rank.vigil.sign()
	}
}

// orUnlimited is the length of answer to reckon with at most.
func orUnlimited(expected int) int {
	if expected <= 0 {
		return unlimited
	}
	return expected
}

func (c *Choice) begun() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.began
}

// Begin says that the client is about to be given the first byte. It returns false when the caller was told to leave
// the rank, which is stalled: then nothing of this answer may be used.
func (c *Choice) Begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.forsaken {
		c.began = true
	}
	return c.began
}

// forsake has the caller take the request back from its rank, unless its answer began meanwhile.
func (c *Choice) forsake(begun bool) {
	c.mu.Lock()
	if c.ended || c.forsaken || c.began != begun {
		c.mu.Unlock()
		return
	}
	c.forsaken = true
	c.mu.Unlock()
	c.chooser.metrics.forsook(begun)
	c.abandon()
}
