package chooser

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// Observer follows one booked request. Its methods are called after the load book has the report. They must not block and may be
// called by several goroutines.
type Observer interface {
	// FirstToken is called at the first token, with the number of output tokens that are known by then.
	FirstToken(now time.Time, outputTokens int)
	// Progress is called when more output tokens are known than before.
	Progress(outputTokens int)
	// Ended is called once, at the end.
	Ended(end *End)
}

// End is the end of a booked request.
type End struct {
	Result
	// At is the time of the end, First the time of the first token, zero if none was reported.
	At, First time.Time
	// Output is the number of output tokens, by the engine's usage or the reports.
	Output int
}

func (e *End) completed() bool { return e.Result.End == decision.EndCompleted }

// observers are the observers of one choice, in the order in which they are notified.
type observers struct {
	all   [11]Observer // as many as there are kinds
	count int
}

func (o *observers) add(one Observer) {
	o.all[o.count] = one
	o.count++
}

func (o *observers) firstToken(now time.Time, output int) {
	for _, one := range o.all[:o.count] {
		one.FirstToken(now, output)
	}
}

func (o *observers) progress(output int) {
	for _, one := range o.all[:o.count] {
		one.Progress(output)
	}
}

func (o *observers) ended(end *End) {
	for _, one := range o.all[:o.count] {
		one.Ended(end)
	}
}

// endOnly is an Observer of which only the end counts.
type endOnly struct{}

func (endOnly) FirstToken(time.Time, int) {}
func (endOnly) Progress(int)              {}

// belief is the index's belief that the rank has the prompt in its cache.
type belief struct {
	endOnly
	*kvindex.Belief
}

// Ended implements Observer: a request without a first token never reached the cache.
func (b *belief) Ended(end *End) {
	if end.First.IsZero() {
		b.End()
	}
}

// answers learns how long answers are, and how long they take.
type answers struct {
	endOnly
	lengths   *lengths
	residence *residence
	decision  *decision.Decision
	external  bool
}

// Ended implements Observer.
func (a *answers) Ended(end *End) {
	if !end.completed() {
		return
	}
	if end.Output > 0 && !a.external {
		a.lengths.add(a.decision.Tenant, end.Output)
	}
	if !end.First.IsZero() {
		a.residence.add(end.At.Sub(end.First))
	}
}

// residence is the mean time in seconds that a request decodes.
type residence struct{ number }

func newResidence() *residence {
	r := &residence{}
	r.set(10)
	return r
}

func (r *residence) add(d time.Duration) {
	mean := r.get()
	r.set(mean + (d.Seconds()-mean)/64)
}

// outcome reports the end of a decision to the record.
type outcome struct {
	endOnly
	reporting
	record   Record
	decision *decision.Decision
	found    *found
}

// Ended implements Observer.
func (o *outcome) Ended(end *End) {
	d, cand := o.decision, o.decision.Pick()
	out := decision.Outcome{
		ID: d.ID, Attempt: d.Attempt, Replica: cand.Replica, Rank: cand.Rank, Slot: cand.Slot, End: end.Result.End,
		Predicted: duration(d.PredictedTTFT()), Duration: end.At.Sub(d.At),
		PromptTokens: end.PromptTokens, OutputTokens: end.OutputTokens, CachedTokens: end.CachedTokens, Counted: end.Counted,
		PredictedCached: o.found.predictedCached(), AskedBy: d.AskedBy, External: o.leased,
	}
	if w := d.Split(); w != nil {
		out.PredictedCached = int(w.Held)
	}
	if by := end.ServedBy; by != "" && by != cand.Replica {
		out.Replica, out.Rank, out.Slot = by, 0, replica.NoSlot // which rank of it is not known
	}
	if !end.First.IsZero() && o.seesFirst() {
		out.TTFT = end.First.Sub(d.At)
	}
	o.record.Outcome(out)
}

// waiters are the requests that wait for a rank.
type waiters interface {
	// freed notes that the rank has less to do than before.
	freed(slot replica.Slot)
}

// freedLoad notifies the requests that wait when the rank has less to do.
type freedLoad struct {
	waiters waiters
	slot    replica.Slot
}

// FirstToken implements Observer.
func (f *freedLoad) FirstToken(time.Time, int) { f.waiters.freed(f.slot) }

// Progress implements Observer.
func (f *freedLoad) Progress(int) {}

// Ended implements Observer.
func (f *freedLoad) Ended(*End) { f.waiters.freed(f.slot) }
