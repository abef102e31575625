package chooser

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/liveness"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// StallConfig configures when a rank that has requests and makes no progress is avoided although its replica
// reports itself healthy.
type StallConfig struct {
	// After is the shortest time without output, while the engine's counters do not change, after which a rank with
	// requests is stalled; five times as long where its counters are not read. A rank that was silent for longer
	// before, or whose prefill was predicted to take longer, gets more time. Zero: stalls are not detected, and
	// bookings of external callers are not doubted.
	After time.Duration `yaml:"after"`
	// Unhealthy is how long a stream may wait for a replica that is unhealthy and silent. Then the stream ends with an
	// error, or is resumed on another replica (router.resume_streams). Zero: without limit.
	Unhealthy time.Duration `yaml:"unhealthy"`
	// Stream is how long a stream that can be resumed on another replica may be silent after its first text while
	// its rank serves others; then it is resumed. When the whole rank is stalled, it is resumed two seconds later. Streams
	// that cannot be resumed are not affected. Zero: without limit.
	Stream time.Duration `yaml:"stream"`
}

// longestAnswer is the length in tokens of an answer that has no limit.
const longestAnswer = 4096

// longestRound bounds the time that one round counts as silence: when this process was suspended, it missed progress too. On a machine
// that is short of processor time most rounds are late, and MUST count in full, or no silence would ever be long enough.
const longestRound = time.Second

// watchRanks judges the ranks until ctx ends.
func (c *Chooser) watchRanks(ctx context.Context) {
	if c.params.Vitals == nil {
		return
	}
	tick := time.NewTicker(liveness.Period)
	defer tick.Stop()
	last := c.clock()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		stall := c.settings.Load().config.Stall
		now := c.clock()
		passed := min(now.Sub(last), longestRound)
		last = now
		vitals := c.vitals(now)
		c.moveLeaving(vitals, now)
		if stall.After == 0 {
			continue
		}
		c.judgeRanks(vitals, liveness.Round{Now: now, Passed: passed, After: stall.After}, stall)
	}
}

// vitals reads what is known of each rank's engine, by slot.
func (c *Chooser) vitals(now time.Time) []liveness.Vitals {
	ranks := *c.ranks.Load()
	list := make([]liveness.Vitals, len(ranks))
	for slot, r := range ranks {
		if r != nil {
			list[slot] = c.params.Vitals(replica.Slot(slot), now)
		}
	}
	return list
}

// judgeRanks judges every rank once.
func (c *Chooser) judgeRanks(vitals []liveness.Vitals, round liveness.Round, stall StallConfig) {
	ranks := (*c.ranks.Load())[:len(vitals)] // those added since then are judged the next time
	var best, second time.Time               // the last answers to health probes, of two replicas that are not late
	var answered replica.ID
	for slot, r := range ranks {
		if r == nil {
			continue
		}
		v := &vitals[slot]
		switch {
		case v.Late >= liveness.LateAfter, r.replica == answered:
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
		round.Elsewhere = best
		if r.replica == answered {
			round.Elsewhere = second
		}
		round.SpeedKnown = r.speed.Model().Samples > 0
		c.judgeRank(r, &vitals[slot], round, stall)
		c.suspendMissing(r, &vitals[slot], round.Now)
	}
}

// judgeRank judges a rank and withdraws the requests that must not wait there.
func (c *Chooser) judgeRank(r *rank, v *liveness.Vitals, round liveness.Round, stall StallConfig) {
	m := &r.liveness
	if before, now := m.Look(v, round); now != before {
		c.verdictChanged(r, before, now)
	}
	if stall.Stream > 0 {
		for _, request := range m.Quiet(round.Passed, stall.Stream) {
			c.withdrawFrom(request.Owner.(*Choice), false, round.Now)
		}
	}
	sick := v.Unhealthy && stall.Unhealthy > 0 && m.Sick() >= stall.Unhealthy
	if !m.Stalled() && !sick {
		return
	}
	for _, request := range m.Movable(sick) {
		c.withdrawFrom(request.Owner.(*Choice), sick, round.Now)
	}
}

// withdrawFrom withdraws a request from its rank if another replica can serve it. A stream of a sick replica is ended in any case.
func (c *Chooser) withdrawFrom(choice *Choice, sick bool, now time.Time) {
	switch begun := choice.hasBegun(); {
	case begun && sick:
		choice.withdraw(true, Stalled)
	case begun && !choice.flight.Resumable(): // its silence ends with the rank's, or with its replica
	case c.canMove(choice, now):
		choice.withdraw(begun, Stalled)
	}
}

// verdictChanged logs and counts a verdict.
func (c *Chooser) verdictChanged(r *rank, before, now liveness.Evidence) {
	defer c.nudge()
	if now == liveness.None {
		c.log.Info("a stalled rank works again", "replica", string(r.replica), "rank", r.index)
		return
	}
	c.metrics.stalled(now)
	if before == liveness.None {
		c.log.Warn("a rank stalled and is avoided", "replica", string(r.replica), "rank", r.index,
			"evidence", now.String(), "silent", r.liveness.Silent(), "requests", r.liveness.InFlight())
	}
}

// newStallMetrics declares which ranks stall, and returns what reads it.
func newStallMetrics(s *instruments.Set, c *Chooser) (observe func(metric.Observer)) {
	stalled := s.ObservedGauge("kvpilot.chooser.stalled", "{rank}", "1 while a rank counts as stalled and is avoided, 0 otherwise, by rank.")
	return func(o metric.Observer) {
		for _, r := range *c.ranks.Load() {
			if r == nil {
				continue
			}
			now := int64(0)
			if r.liveness.Evidence() != liveness.None {
				now = 1
			}
			o.ObserveInt64(stalled, now, r.labels)
		}
	}
}

// canMove reports whether another replica could take the request of a choice.
func (c *Chooser) canMove(choice *Choice, now time.Time) bool {
	for _, other := range choice.pool {
		if other.ID == choice.Replica.ID || other.State != replica.StateReady {
			continue
		}
		for _, slot := range other.Slots {
			if r := c.rank(slot); r != nil && !r.liveness.Avoided(now) {
				return true
			}
		}
	}
	list := choice.Decision.List()
	for i := range list {
		o := &list[i]
		if o.Replica == choice.Replica.ID || o.Veto != decision.VetoNone && o.Veto != decision.VetoStalled {
			continue
		}
		if r := c.rank(o.Slot); r != nil && !r.liveness.Avoided(now) {
			return true
		}
	}
	return false
}

// suspendMissing stops counting the bookings of external callers when the engine does not report their requests.
func (c *Chooser) suspendMissing(r *rank, v *liveness.Vitals, now time.Time) {
	list, ask := r.liveness.Missing(v, now)
	if ask && c.params.Ask != nil {
		c.params.Ask(r.slot)
	}
	freed := false
	for _, request := range list {
		choice := request.Owner.(*Choice)
		r.liveness.Settle(request)
		if choice.reservation.Suspend() {
			freed = true
			choice.belief.End()
			r.unroute(request.Prefill, c.since(now))
		}
	}
	if freed {
		c.freed(r.slot)
	}
}

// avoidStalled vetoes the ranks that are stalled, unless all are.
func (s *scratch) avoidStalled(now time.Time) {
	stalled, left := 0, 0
	for i := range s.d.Candidates {
		if s.d.Candidates[i].Veto != decision.VetoNone {
			continue
		}
		if r := s.ranks[i]; r != nil && r.liveness.Avoided(now) {
			stalled++
		} else {
			left++
		}
	}
	if stalled == 0 || left == 0 {
		return
	}
	for i := range s.d.Candidates {
		cand := &s.d.Candidates[i]
		if r := s.ranks[i]; cand.Veto == decision.VetoNone && r != nil && r.liveness.Avoided(now) {
			cand.Veto, cand.Silent = decision.VetoStalled, r.liveness.Silent().Seconds()
		}
	}
}

// Heard notes that a rank made progress, for example by its event feed.
func (c *Chooser) Heard(slot replica.Slot) {
	if r := c.rank(slot); r != nil {
		r.liveness.Sign()
	}
}

// longest is the length in tokens of the longest answer that the request may get. Of a request from another router only what it expects is
// known.
func (req *Request) longest() int {
	switch {
	case req.OutputLimit > 0:
		return req.OutputLimit
	case req.ExpectedOutput > 0 && req.AskedBy != "":
		return req.ExpectedOutput
	}
	return max(longestAnswer, req.ExpectedOutput)
}

// track adds a booked choice to the requests in flight on its rank. Whether the request of a lease was sent is unknown until
// its holder reports.
func (c *Choice) track(req *Request, prefill time.Duration) {
	if c.rank == nil || req.Quiet {
		return
	}
	cand, limit := c.Decision.Pick(), req.longest()
	f := &c.flight
	f.Owner, f.At, f.Streamed, f.Movable, f.Withdrawable = c, c.at, c.streamed, req.Movable, req.Abandon != nil
	f.Prefill, f.Decode, f.FullStep = prefill.Seconds(), cand.StepTime*float64(limit), cand.FullStep
	c.abandon = req.Abandon
	if c.leased {
		c.rank.liveness.Lend(f)
		return
	}
	c.rank.liveness.Enter(f)
	c.tracked = true
}

// untrack removes it; answered is set when the engine gave an answer.
func (c *Choice) untrack(answered bool) {
	if c.rank == nil {
		return
	}
	if answered {
		c.rank.liveness.Sign()
	}
	if c.tracked {
		c.rank.liveness.Leave(&c.flight)
	}
	if c.leased {
		c.rank.liveness.Settle(&c.flight)
	}
}

// Alive notes that the engine has sent something for this request.
func (c *Choice) Alive() {
	if c.rank != nil {
		c.rank.liveness.Sign()
		c.flight.Sign()
	}
}

// SetResumable notes whether another replica could continue the stream from what the client has now. Only then is a stream that
// has begun withdrawn from a rank that serves nothing, or not this stream, while its replica is healthy.
func (c *Choice) SetResumable(yes bool) { c.flight.SetResumable(yes) }

func (c *Choice) hasBegun() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.began
}

// Begin notes that the client is about to receive the first byte. It returns false when the request was withdrawn from
// its rank: then nothing of this answer may be used.
func (c *Choice) Begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.withdrawn {
		c.began = true
	}
	return c.began
}

// withdraw signals the caller to withdraw the request from its rank, unless its answer has begun.
func (c *Choice) withdraw(afterBegin bool, why Withdrawal) {
	c.mu.Lock()
	if c.ended || c.withdrawn || c.began != afterBegin {
		c.mu.Unlock()
		return
	}
	c.withdrawn = true
	c.mu.Unlock()
	c.chooser.metrics.withdrawn.Add(context.Background(), 1, begun(afterBegin))
	c.abandon(why)
}
