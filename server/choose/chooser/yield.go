package chooser

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

const (
	// yieldRatio is how many times longer the rest of a prompt must be than the work of the request
	// that it gives way to. What was put down keeps that advantage in the
	// hold queue, so that only work so short passes it until it goes on. docs/adr/013-giving-way.md.
	yieldRatio = 5
	// yieldSteps is how many full steps of the engine must be won: its present one cannot be stopped.
	yieldSteps = 2
	// yieldAgeing is the rest in seconds by which each second since it first asked makes it stay.
	yieldAgeing = 1
)

// giving is what a rank knows of requests that give way. Lists are replaced, never changed.
type giving struct {
	// able are the requests in flight that may be asked to, oldest first.
	able atomic.Pointer[[]*Choice]
	// awaited is the work in seconds of those that gave way and have not asked again, one by one in
	// absent, which the rank's mu guards: the rank is theirs next.
	awaited number
	absent  map[*Choice]float64
}

func (g *giving) list() []*Choice {
	if l := g.able.Load(); l != nil {
		return *l
	}
	return nil
}

// add lists a choice; the rank's mu is held.
func (g *giving) add(choice *Choice) {
	l := append(slices.Clone(g.list()), choice)
	g.able.Store(&l)
}

// drop takes it off; the rank's mu is held.
func (g *giving) drop(choice *Choice) {
	old := g.list()
	if i := slices.Index(old, choice); i >= 0 {
		l := slices.Concat(old[:i], old[i+1:])
		g.able.Store(&l)
	}
}

// expect keeps the rank for a choice that has so many seconds left, and for nobody with 0; the
// rank's mu is held.
func (g *giving) expect(choice *Choice, seconds float64) {
	if seconds > 0 {
		if g.absent == nil {
			g.absent = map[*Choice]float64{}
		}
		g.absent[choice] = seconds
	} else if _, ok := g.absent[choice]; ok {
		delete(g.absent, choice)
	} else {
		return
	}
	sum := 0.0
	for _, s := range g.absent {
		sum += s
	}
	g.awaited.set(sum)
}

// turn is what a request that overtook another owes it: word that the engine has it, since a prompt that
// is sent again at the same moment might come first after all.
type turn struct {
	once sync.Once
	over chan struct{}
}

func newTurn() *turn { return &turn{over: make(chan struct{})} }

func (t *turn) end() {
	if t != nil {
		t.once.Do(func() { close(t.over) })
	}
}

// Behind is closed when a request that gave way may be sent again: the engine has the one that overtook
// it, or will never have it. It is nil for a request that did not give way.
func (c *Choice) Behind() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.behind == nil {
		return nil
	}
	return c.behind.over
}

// Arrived says that the engine has the request: it began to answer.
func (c *Choice) Arrived() { c.ahead.end() }

// mayYield lists the choice where it can be asked to give way: its first token can be seen, the
// engine is known to keep what it has computed, and it is long.
func (c *Choice) mayYield(req *Request, cand *decision.Candidate, work float64) {
	if req.Yield == nil || c.chooser.settingsOf(req).config.YieldRanks == 0 || c.rank == nil || c.Decision.Policy != decision.PredictedTTFT || req.Unstreamed ||
		cand.Feed != kvblock.FeedExact || req.Hashes == nil || req.Estimated || work <= yieldSteps*cand.FullStep {
		return
	}
	hashes, held := hashesFor(req, cand), int(cand.GPU)/int(cand.BlockSize)
	if held >= len(hashes) {
		return
	}
	c.yield, c.work, c.computes, c.lacks = req.Yield, work, hashes[held], held
	c.rank.mu.Lock()
	defer c.rank.mu.Unlock()
	c.rank.giving.add(c)
}

// Begin says that the client is about to be given the first byte. It returns false when the request
// has given way already, or was told to leave a stalled rank: then nothing of this answer may be used.
func (c *Choice) Begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.yielded && !c.forsaken {
		c.began = true
	}
	return c.began
}

// giveWay takes the choice off its rank, unless its answer has begun; it goes on after the turn that it
// returns. rest is its work left.
func (c *Choice) giveWay(rest float64, now time.Time) *turn {
	c.mu.Lock()
	if c.ended || c.began || c.yielded || c.forsaken || !c.first.IsZero() {
		c.mu.Unlock()
		return nil
	}
	first := newTurn()
	c.yielded, c.behind = true, first
	c.mu.Unlock()
	if c.reservation.Release() != load.Applied {
		rest = 0 // its rank is gone
	}
	r := c.rank
	r.unroute(rest/(1+c.Decision.Pick().Slowdown), c.chooser.since(now))
	r.mu.Lock()
	r.giving.drop(c)
	r.giving.expect(c, rest)
	r.mu.Unlock()
	c.mu.Lock()
	over := c.ended
	c.mu.Unlock()
	if over { // meanwhile, and not for this: nobody will go on
		c.settled()
	}
	c.yield()
	return first
}

// settled ends what the rank keeps for a choice: nobody needs to ask it to give way, or wait for it.
func (c *Choice) settled() {
	if c == nil || c.yield == nil {
		return
	}
	c.rank.mu.Lock()
	defer c.rank.mu.Unlock()
	c.rank.giving.drop(c)
	c.rank.giving.expect(c, 0)
}

// awaits reports whether the request counts on what the choice has yet to compute: overtaking that, it
// would have to compute it itself.
func (req *Request) awaits(c *Choice, cand *decision.Candidate) bool {
	hashes := hashesFor(req, cand)
	return c.lacks < len(hashes) && hashes[c.lacks] == c.computes
}

// yielder is the request on the rank that would give way to req, which has work seconds to compute and first
// asked at since, and the rest of its prefill in seconds; nil when there is none. The longer one has been
// there than the other, the more it takes, so that nothing is put off for ever.
func (r *rank) yielder(req *Request, cand *decision.Candidate, work float64, since, now time.Time) (*Choice, float64) {
	var best *Choice
	var longest float64
	for i, o := range r.giving.list() {
		rest := min(o.work, cand.Backlog)
		if i == 0 {
			rest = min(rest, o.work-now.Sub(r.servedSince(o.at)).Seconds())
		}
		need := yieldRatio*work + yieldSteps*cand.FullStep + yieldAgeing*max(0, since.Sub(o.since).Seconds())
		if rest > longest && rest >= need && !req.awaits(o, cand) {
			best, longest = o, rest
		}
	}
	return best, longest
}

// yields is the part of the rank's backlog that gives way to the request in s: the rest of the
// longest that would, less half of the engine's present step, on average.
func (c *Chooser) yields(s *scratch, req *Request, rk *rank, cand *decision.Candidate, now time.Time) float64 {
	if !s.held || cand.Veto != decision.VetoNone || len(rk.giving.list()) == 0 {
		return 0
	}
	_, rest := rk.yielder(req, cand, workOn(&s.d, cand), s.sinceOr(now), now)
	return max(0, rest-cand.FullStep/2)
}

// workOn is what selector will predict for the request on the candidate.
func workOn(d *decision.Decision, cand *decision.Candidate) float64 {
	return selector.Work(d, cand) * (1 + cand.Slowdown)
}

// order is the work by which a request takes its place in the hold queue.
func (req *Request) order(work float64) float64 {
	if req.Resumes != nil {
		return work / yieldRatio
	}
	return work
}

// couldMakeRoom reports whether the candidate has room once somebody there has given way. What is left of
// the engine's present step is no reason to wait: the next one takes up who is there by then.
func (c *Chooser) couldMakeRoom(cand *decision.Candidate) bool {
	return cand.Yields > 0 && cand.Backlog-cand.Yields+cand.Planned < max(c.enough(cand), cand.FullStep)
}

// makeRoom has the longest request on the candidate give way to w.
func (c *Chooser) makeRoom(s *scratch, cand *decision.Candidate, w *waiter, now time.Time) bool {
	if !c.couldMakeRoom(cand) {
		return false
	}
	rk := c.rank(cand.Slot)
	if rk == nil {
		return false
	}
	o, rest := rk.yielder(w.req, cand, workOn(&s.d, cand), w.ticket.Since, now)
	if o == nil {
		return false
	}
	first := o.giveWay(rest, now)
	if first == nil {
		return false
	}
	s.ahead = first
	s.forget(cand.Slot)
	c.metrics.yields.Add(1)
	s.d.Overtook = o.Decision.ID
	return true
}

// firstAsked is when the request first asked: now, unless it gave way before.
func (req *Request) firstAsked(now time.Time) time.Time {
	if req.Resumes != nil {
		return req.Resumes.since
	}
	return now
}

func (s *scratch) sinceOr(now time.Time) time.Time {
	if s.since.IsZero() {
		return now
	}
	return s.since
}

// keepAll has nobody give way.
func keepAll(d *decision.Decision) {
	for i := range d.Candidates {
		d.Candidates[i].Yields = 0
	}
}

// stay vetoes all but the rank where the blocks of a request are that goes on; where it may not go
// there any more, it is chosen anew.
func stay(d *decision.Decision, slot replica.Slot) {
	if !slices.ContainsFunc(d.Candidates, func(c decision.Candidate) bool { return c.Slot == slot && c.Veto == decision.VetoNone }) {
		return
	}
	for i := range d.Candidates {
		if c := &d.Candidates[i]; c.Slot != slot && c.Veto == decision.VetoNone {
			c.Veto = decision.VetoElsewhere
		}
	}
}
