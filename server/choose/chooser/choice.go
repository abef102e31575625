package chooser

import (
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/choose/liveness"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// Choice is a decision that was made and, unless it was a dry run, booked. Its methods are
// idempotent and safe for concurrent use; on a dry run they do nothing.
type Choice struct {
	Decision *decision.Decision
	Replica  *replica.Replica
	Rank     int
	Slot     replica.Slot

	chooser     *Chooser
	line        *line
	rank        *rank
	reservation *load.Reservation
	belief      *kvindex.Belief
	at          time.Time
	streamed    bool
	silent      bool // its first token may not be seen
	leased      bool
	// entry is its place in the account of the rank's speed.
	entry speed.Entry
	// stream is its place in the record of the rank's conduct.
	stream          conduct.Stream
	watched, uneven bool
	// external is set when a caller outside of the fleet sends the request, so that what is known of it is the caller's word.
	external bool
	// flight is the request among those in flight on its rank, while tracked; abandon is its Request's.
	flight  liveness.Request
	tracked bool
	abandon func(Withdrawal)
	// unread and samples are the request's; certain is what the rank held of the prompt by its hashes alone, in tokens.
	unread   bool
	samples  int
	observer Observer
	// adopted is set when another router decided: the rank's speed learns nothing from it. quiet is set when that router records
	// its end, too. pool are the replicas that it could have been sent to, where the decision does not list them all.
	adopted, quiet bool
	pool           []*replica.Replica
	certain        uint32
	// stores counts what the rank had announced when the choice was made.
	stores uint64

	mu     sync.Mutex
	first  time.Time      // of the first token; guarded by mu
	mark   mark           // guarded by mu
	output int            // tokens so far; guarded by mu
	ended  bool           // guarded by mu
	onEnd  []func(Result) // guarded by mu
	result Result         // once it has ended; guarded by mu
	began  bool           // the client has received something; guarded by mu
	// withdrawn: its caller was signalled to withdraw it from a stalled rank; guarded by mu
	withdrawn bool
	whole     *whole // nil: the decision knew as much; guarded by mu
	program   programCall
}

// FirstToken reports that the engine has prefilled the prompt. It releases the prefill load, and
// the rank's rates learn from the time it took.
func (c *Choice) FirstToken() {
	if c.reservation == nil || c.firstToken() != load.Applied {
		return
	}
	c.chooser.freed(c.Slot)
}

func (c *Choice) firstToken() load.Outcome {
	out := c.reservation.PrefillDone()
	if out != load.Applied {
		return out
	}
	if before := c.flight.Prefilled(); !before && c.leased && c.rank != nil {
		c.rank.liveness.Settle(&c.flight)
	}
	c.Alive()
	now := c.chooser.clock()
	l := c.chooser.params.Book.View(c.Slot, now)
	c.mu.Lock()
	c.first = now
	c.mark.set(now, 0, &l)
	c.mu.Unlock()
	c.stream.Begin(now)
	c.learnFirst(now, &l)
	if c.observer != nil {
		c.observer.FirstToken()
	}
	return out
}

// sawFirst reports whether what FirstToken said is the first token: it always is where the holder of a lease says so. Of an answer in one
// piece that this process carries it is the whole answer.
func (c *Choice) sawFirst() bool { return c.streamed || c.leased }

// Progress reports how many output tokens the request has produced in all so far; it implies
// FirstToken.
func (c *Choice) Progress(outputTokens int) {
	if c.reservation == nil {
		return
	}
	c.progress(outputTokens)
}

func (c *Choice) progress(outputTokens int) load.Outcome {
	c.mu.Lock()
	unseen := c.first.IsZero() && !c.ended
	grown := outputTokens > c.output
	c.output = max(c.output, outputTokens)
	c.mu.Unlock()
	c.Alive()
	c.stream.Progress(outputTokens)
	if grown && !unseen {
		c.learnSteps(c.chooser.clock(), outputTokens)
	}
	if unseen && c.firstToken() == load.Applied {
		c.chooser.freed(c.Slot)
	}
	out := c.reservation.Progress(outputTokens)
	if c.observer != nil && grown {
		c.observer.Progress(outputTokens)
	}
	return out
}

// OnEnd calls f when the reservation ends, at once when it has ended already.
func (c *Choice) OnEnd(f func(Result)) {
	c.mu.Lock()
	ended, result := c.ended, c.result
	if !ended {
		c.onEnd = append(c.onEnd, f)
	}
	c.mu.Unlock()
	if ended {
		f(result)
	}
}

// Release ends the reservation. The first call counts and returns true.
func (c *Choice) Release(result Result) bool {
	if c.reservation == nil {
		return false
	}
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return false
	}
	c.ended, c.result = true, result
	first, output, onEnd := c.first, c.output, c.onEnd
	c.mu.Unlock()
	for _, f := range onEnd {
		defer f(result)
	}
	if !c.streamed && result.End == decision.EndCompleted {
		c.reservation.PrefillDone() // and so is the prefill of those before it
	}
	c.reservation.Release()
	c.untrack(result.End == decision.EndCompleted)
	if first.IsZero() {
		c.belief.End() // it never reached the cache
	}
	if c.leased {
		c.chooser.booked.CompareAndDelete(bookedName{c.Decision.Tenant, c.Decision.ID}, c)
	}
	if result.OutputTokens > output {
		output = result.OutputTokens
	}
	if result.End == decision.EndCompleted && output > 0 && !c.external {
		c.line.lengths.add(c.Decision.Tenant, output)
	}
	now := c.chooser.clock()
	if !first.IsZero() && result.End == decision.EndCompleted {
		decoding := now.Sub(first).Seconds()
		r := c.chooser.residence.get()
		c.chooser.residence.set(r + (decoding-r)/64)
		c.learnSteps(now, output)
	}
	c.learnEnd(now, output, result.End == decision.EndCompleted)
	c.witness(now, output, &result)
	c.program.end(c, now, output)
	c.report(result, first, now)
	if c.observer != nil {
		c.observer.Ended(result)
	}
	c.chooser.freed(c.Slot)
	return true
}

func (c *Choice) report(result Result, first, now time.Time) {
	if c.chooser.params.OnOutcome == nil || c.quiet {
		return
	}
	cand := c.Decision.Pick()
	o := decision.Outcome{
		ID: c.Decision.ID, Attempt: c.Decision.Attempt, Replica: cand.Replica, Rank: cand.Rank, Slot: cand.Slot, End: result.End,
		Predicted: duration(cand.TTFT), Duration: now.Sub(c.at),
		PromptTokens: result.PromptTokens, OutputTokens: result.OutputTokens, CachedTokens: result.CachedTokens, Counted: result.Counted,
		PredictedCached: c.predictedCached(), AskedBy: c.Decision.AskedBy, External: c.leased,
	}
	if by := result.ServedBy; by != "" && by != cand.Replica {
		o.Replica, o.Rank, o.Slot = by, 0, replica.NoSlot // which rank of it is not known
	}
	if !first.IsZero() && c.sawFirst() {
		o.TTFT = first.Sub(c.at)
	}
	c.chooser.params.OnOutcome(o)
}
