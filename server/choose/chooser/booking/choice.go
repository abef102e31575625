package booking

import (
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/claims"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/follow"
	"github.com/kvpilot/kvpilot/server/choose/chooser/leases"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Choice is a decision that was made and, unless it was a dry run, booked: a reservation, and the observers of the request. Its methods
// are idempotent and safe for concurrent use; on a dry run they do nothing.
type Choice struct {
	Decision *decision.Decision
	Replica  *replica.Replica
	Rank     int
	Slot     replica.Slot

	reservation *load.Reservation // nil: nothing is booked
	clock       *clock.Clock
	reporting   ask.Reporting
	life        life
	observers   observers
	found       follow.Found

	// The observers of this process.
	flight  follow.Flight
	belief  follow.Belief
	lease   leases.Lease
	answers follow.Answered
	lesson  follow.Lesson
	stream  follow.Stream
	program claims.Booked
	outcome follow.Outcome
	load    follow.Freed
	legs    *legs // nil where the request is served whole
}

// life is the request's progress so far.
type life struct {
	mu    sync.Mutex
	end   ask.End            // its First and Output as they are known so far; guarded by mu until ended, then it never changes
	ended bool               // guarded by mu
	onEnd []func(ask.Result) // guarded by mu
}

// grow notes the output so far, and reports whether it is more than before and whether the first token was not reported yet.
func (l *life) grow(output int) (total int, grown, unseen bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return l.end.Output, false, false
	}
	grown = output > l.end.Output
	l.end.Output = max(l.end.Output, output)
	return l.end.Output, grown, l.end.First.IsZero()
}

// begin notes the first token.
func (l *life) begin(now time.Time) (output int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.end.First = now
	}
	return l.end.Output
}

// finish notes the end; false when it has ended before.
func (l *life) finish(result ask.Result) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.ended, l.end.Result, l.end.Output = true, result, max(l.end.Output, result.OutputTokens)
	return true
}

// open reports whether the request has neither a first token nor an end.
func (l *life) open() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end.First.IsZero() && !l.ended
}

// FirstToken reports that the engine has prefilled the prompt. It releases the prefill load, and
// the rank's rates learn from the time it took.
func (c *Choice) FirstToken() {
	if c.reservation != nil {
		c.Prefilled()
	}
}

// Prefilled is FirstToken with the answer of the load book.
func (c *Choice) Prefilled() load.Outcome {
	out := c.reservation.PrefillDone()
	if out == load.Applied {
		now := c.clock.Now()
		c.observers.firstToken(now, c.life.begin(now))
	}
	return out
}

// Progress reports how many output tokens the request has produced in all so far; it implies
// FirstToken.
func (c *Choice) Progress(outputTokens int) {
	if c.reservation != nil {
		c.Advanced(outputTokens)
	}
}

// Advanced is Progress with the answer of the load book.
func (c *Choice) Advanced(outputTokens int) load.Outcome {
	output, grown, unseen := c.life.grow(outputTokens)
	switch {
	case unseen && c.Prefilled() == load.Applied:
	case grown:
		c.observers.progress(output)
	default:
		c.Alive()
	}
	return c.reservation.Progress(outputTokens)
}

// OnEnd calls f when the reservation ends, at once when it has ended already.
func (c *Choice) OnEnd(f func(ask.Result)) {
	l := &c.life
	l.mu.Lock()
	ended := l.ended
	if !ended {
		l.onEnd = append(l.onEnd, f)
	}
	l.mu.Unlock()
	if ended {
		f(l.end.Result)
	}
}

// Release ends the reservation. The first call counts and returns true.
func (c *Choice) Release(result ask.Result) bool {
	if c.reservation == nil || !c.life.finish(result) {
		return false
	}
	for _, f := range c.life.onEnd {
		defer f(result)
	}
	if !c.reporting.Streamed && result.End == decision.EndCompleted {
		c.reservation.PrefillDone() // and so is the prefill of those before it
	}
	c.reservation.Release()
	c.life.end.At = c.clock.Now()
	c.observers.ended(&c.life.end)
	if lead := c.Prefill(); lead != nil && lead.life.open() {
		lead.Release(ask.ResultOf(result.End)) // nothing would use its prompt
	}
	return true
}

// Booked reports whether the choice has a reservation.
func (c *Choice) Booked() bool { return c.reservation != nil }

// Held is how many of the prompt's tokens the chosen rank was believed to hold, by the best that is known.
func (c *Choice) Held() int {
	if w := c.Decision.Split(); w != nil { // the engine that decodes reports the hits of the other one
		return int(w.Held)
	}
	if known := c.found.Later(); known != nil {
		return known.Held
	}
	cand := c.Decision.Pick()
	if cand == nil {
		return 0
	}
	return int(cand.Overlap.Tokens())
}

// Begin notes that the client is about to receive the first byte. It returns false when the request was withdrawn from
// its rank: then nothing of this answer may be used.
func (c *Choice) Begin() bool { return c.flight.Begin() }

// Alive notes that the engine has sent something for this request.
func (c *Choice) Alive() { c.flight.Alive() }

// SetResumable notes whether another replica could continue the stream from the text that the client has now. Only then is a stream that
// has begun withdrawn from a rank that serves nothing, or not this stream, while its replica is healthy.
func (c *Choice) SetResumable(yes bool) { c.flight.SetResumable(yes) }

// ShouldMove reports whether the requests of the replica are to move to others, and one of them could take this one. The holder
// of a stream that has begun asks when the stream can be resumed, and then resumes it there. Any goroutine may call it; it is cheap
// while the replica is not left.
func (c *Choice) ShouldMove() bool { return c.flight.ShouldMove(c.clock) }

// Writing notes that the client is being given something, or that this is over: time that a client takes to read is not the rank's.
func (c *Choice) Writing(yes bool) { c.stream.Writing(yes) }

// Emptied notes that the answer had nothing in it although another replica gave one for the same request.
func (c *Choice) Emptied() {
	if c.flight.Rank != nil && !c.reporting.Leased {
		c.flight.Rank.Conduct.Emptied(c.clock.Now())
	}
}

// Whole reports the prompt's length and the part that the chosen rank holds, now that all its ids are known. The
// decision was made with their beginning and stays as it is; the prediction that the outcome is compared with
// counts on the part found now. Blocks that the engine has stored of this very prompt since do not count. It returns
// how many of the prompt's tokens the rank holds by that, and whether that is known.
func (c *Choice) Whole(hashes []blockhash.Hash, promptTokens int) (held int, ok bool) {
	held, ok = c.found.Match(hashes, promptTokens)
	if !ok || c.flight.HasBegun() || !c.life.open() {
		return 0, false // the engine may have stored the prompt itself by now
	}
	c.found.Mu.Lock()
	defer c.found.Mu.Unlock()
	c.found.Whole = &follow.Whole{Held: held, Prompt: promptTokens}
	return held, true
}

// loads has the tiers of the chosen rank learn from the request, where they hold a part of its prompt.
func (c *Choice) loads(rk *rank.Rank, cand *decision.Candidate) {
	if cand.CPU|cand.Disk != 0 {
		rk.Tiers.Book(cand.OwnLoad(), c.clock.Since(c.Decision.At))
		c.observers.add(&follow.Loaded{Reporting: c.reporting, Decision: c.Decision, Found: &c.found, Tiers: &rk.Tiers, Fetches: rk.Fetches})
	}
}

// legs are the extra state of a split request's Choice: the Choice of the rank that prefills, and the move of the cache.
type legs struct {
	prefill *Choice
	move    follow.Move
	reports ask.MoveReports // nil: no other router is to know
}

// Prefill returns the Choice of the rank that computes the prompt for this one; nil where the request is served whole. It is booked like
// any other and must be ended with Release; it also ends with this one where its prompt is not computed by then.
func (c *Choice) Prefill() *Choice {
	if c.legs == nil {
		return nil
	}
	return c.legs.prefill
}

// Sent notes that the request goes to the rank that decodes, which has the cache to read: from now on its silence counts.
func (c *Choice) Sent() {
	if c.legs == nil {
		return
	}
	now := c.clock.Now()
	c.legs.move.Sent.Store(c.clock.Since(now))
	c.flight.Join(now)
	if c.legs.reports != nil {
		c.legs.reports.Sent()
	}
}

// PredictedMove is the predicted time of the move of the cache; 0 where the request is served whole.
func (c *Choice) PredictedMove() time.Duration {
	if w := c.Decision.Split(); w != nil {
		return clock.Duration(w.Transfer)
	}
	return 0
}
