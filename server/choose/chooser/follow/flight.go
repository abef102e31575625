package follow

import (
	"cmp"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/choose/liveness"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// watching is the way in which a request counts on its rank.
type watching uint8

const (
	notWatched watching = iota
	ready               // it was not sent yet
	entered             // it is in flight
	lent                // whether it was sent is unknown until its holder reports
)

// Flight is a booked request on its rank: an Observer by which the rank's liveness follows it, and its withdrawal from the rank. It is
// the Owner of its liveness.Request. The zero value is on no rank.
type Flight struct {
	liveness.Request
	Rank     *rank.Rank // nil: it is not known
	watching watching   // guarded by mu once it has entered

	Reservation *load.Reservation
	Belief      *kvindex.Belief
	// Ranks, decision and pool show whether another replica could serve the request. pool are the replicas that it could have
	// been sent to, where the decision does not list them all.
	Ranks    *rank.Table
	Decision *decision.Decision
	Pool     []*replica.Replica
	terms    terms

	abandon   func(ask.Withdrawal)
	Abandoned *Withdrawn

	mu        sync.Mutex
	began     bool // the client has received something; guarded by mu
	withdrawn bool // its caller was signalled to withdraw it; guarded by mu
	ended     bool // guarded by mu
}

// terms are a request's demands on the replica that serves it, as far as replicas that came after its decision are concerned.
type terms struct {
	// served is the model's name at the engines; empty: no replica but the decision's own may serve the request.
	served string
}

// termsOf returns the terms of a request. One that names replicas or ranks keeps to the decision.
func termsOf(req *ask.Request) terms {
	o := &req.Options
	if len(o.Allowed)+len(o.Denied) > 0 || o.Pinned != "" || o.MinRank != 0 || o.MaxRank != 0 || req.Holder != "" {
		return terms{}
	}
	return terms{served: cmp.Or(req.Served, req.Model)}
}

// fits reports whether the replica of a rank, as it is now, can serve the request.
func (t terms) fits(r *rank.Rank) bool {
	view := r.Known.Load()
	if t.served == "" || view.State != replica.StateReady || r.Leaving.Load() || view.IsRankDrained(r.Index) {
		return false
	}
	_, ok := view.Serves(t.served)
	return ok
}

// Enter adds the request to the requests in flight on its rank.
func (f *Flight) Enter(req *ask.Request, prefill time.Duration, how ask.Reporting) {
	if f.Rank == nil || req.Quiet {
		return
	}
	f.watching = ready
	cand := f.Decision.Pick()
	f.Owner, f.At, f.Streamed, f.Movable, f.Withdrawable = f, f.Decision.At, how.Streamed, req.Movable, req.Abandon != nil
	f.Prefill, f.Decode, f.FullStep = prefill.Seconds(), cand.StepTime*float64(req.LongestAnswer()), cand.FullStep
	f.abandon, f.terms = req.Abandon, termsOf(req)
	switch {
	case how.Leased:
		f.watching = lent
		f.Rank.Liveness.Lend(&f.Request)
	case f.Decision.Split() == nil:
		f.Join(f.At)
	default: // nothing is sent before the prompt is computed
	}
}

// Join adds the request, which is sent now, to the requests in flight on its rank.
func (f *Flight) Join(now time.Time) {
	f.mu.Lock()
	joins := f.watching == ready
	if joins {
		f.watching, f.At = entered, now
	}
	f.mu.Unlock()
	if !joins {
		return
	}
	f.Rank.Liveness.Enter(&f.Request)
}

// Alive notes that the engine has sent something for the request.
func (f *Flight) Alive() {
	if f.Rank != nil {
		f.Rank.Liveness.Sign()
		f.Sign()
	}
}

// FirstToken implements Observer.
func (f *Flight) FirstToken(time.Time, int) {
	f.mu.Lock()
	isLent := f.watching == lent
	f.mu.Unlock()
	if before := f.Prefilled(); !before && isLent {
		f.Rank.Liveness.Settle(&f.Request)
	}
	f.Alive()
}

// Computing is the flight of a prompt that is computed for another rank: with the first token the rank's work is done, however long the other
// one takes to read the cache. It is an Observer.
type Computing struct{ *Flight }

// FirstToken implements Observer.
func (f Computing) FirstToken(now time.Time, output int) {
	f.Flight.FirstToken(now, output)
	f.leave()
}

// Progress implements Observer.
func (f *Flight) Progress(int) { f.Alive() }

// Ended implements Observer.
func (f *Flight) Ended(end *ask.End) {
	f.mu.Lock()
	f.ended = true
	f.mu.Unlock()
	if end.Completed() { // the engine gave an answer
		f.Rank.Liveness.Sign()
	}
	f.leave()
}

// leave takes the request from the requests in flight on its rank. Only the first call counts.
func (f *Flight) leave() {
	f.mu.Lock()
	was := f.watching
	f.watching = notWatched
	f.mu.Unlock()
	switch was {
	case entered:
		f.Rank.Liveness.Leave(&f.Request)
	case lent:
		f.Rank.Liveness.Settle(&f.Request)
	case notWatched, ready:
	}
}

// Suspend stops counting the booking because the engine does not report the request; false when it has reported or is not booked.
func (f *Flight) Suspend(now int64) bool {
	f.Rank.Liveness.Settle(&f.Request)
	if !f.Reservation.Suspend() {
		return false
	}
	f.Belief.End()
	f.Rank.Unroute(f.Prefill, now)
	return true
}

// HasBegun reports whether the client has received something.
func (f *Flight) HasBegun() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.began
}

// Begin notes that the client is about to receive the first byte; false when the request was withdrawn.
func (f *Flight) Begin() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.withdrawn {
		f.began = true
	}
	return f.began
}

// Withdraw signals the caller to withdraw the request from its rank, unless its answer has begun.
func (f *Flight) Withdraw(afterBegin bool, why ask.Withdrawal) {
	f.mu.Lock()
	if f.ended || f.withdrawn || f.began != afterBegin {
		f.mu.Unlock()
		return
	}
	f.withdrawn = true
	f.mu.Unlock()
	f.Abandoned.Count.Add(begun(afterBegin))
	f.abandon(why)
}

// WithdrawFromStalled withdraws the request if another replica can serve it. A stream of a sick replica is ended in any case.
func (f *Flight) WithdrawFromStalled(sick bool, now time.Time) {
	switch begun := f.HasBegun(); {
	case begun && sick:
		f.Withdraw(true, ask.Stalled)
	case begun && !f.Resumable(): // its silence ends with the rank's, or with its replica
	case f.CanMove(now):
		f.Withdraw(begun, ask.Stalled)
	}
}

// CanMove reports whether another replica could take the request.
func (f *Flight) CanMove(now time.Time) bool {
	own := f.Decision.Pick().Replica
	if f.terms.served != "" { // as the fleet is now: a rolling update replaces the replicas of the decision one after the other
		for r := range f.Ranks.All() {
			if (r.Replica != own || f.leavesRank()) && f.terms.fits(r) && !r.Liveness.Avoided(now) {
				return true
			}
		}
		return false
	}
	for _, other := range f.Pool {
		if other.ID == own || other.State != replica.StateReady {
			continue
		}
		for _, slot := range other.Slots {
			if r := f.Ranks.At(slot); r != nil && !r.Liveness.Avoided(now) {
				return true
			}
		}
	}
	list := f.Decision.List()
	for i := range list {
		o := &list[i]
		if o.Replica == own || o.Veto != decision.VetoNone && o.Veto != decision.VetoStalled {
			continue
		}
		if r := f.Ranks.At(o.Slot); r != nil && !r.Liveness.Avoided(now) {
			return true
		}
	}
	return false
}

// leavesRank reports whether the request's rank drains, and others of its replica do not.
func (f *Flight) leavesRank() bool {
	return f.Rank != nil && f.Rank.Known.Load().IsRankDrained(f.Rank.Index)
}

// ShouldMove reports whether the requests of the replica are to move to others, and one of them could take this one.
func (f *Flight) ShouldMove(clock *clock.Clock) bool {
	return f.Rank != nil && f.Rank.Leaving.Load() && f.Ranks.IsLeft(f.Rank) && f.CanMove(clock.Now())
}

// Withdrawn counts the requests that are withdrawn from their rank. The zero value counts nothing.
type Withdrawn struct {
	Count instruments.Keyed[begun] `metric:"kvpilot.chooser.forsaken" unit:"{request}" by:"begun" help:"Requests withdrawn from a stalled rank, by whether their answer had begun."`
}

// Know makes the series.
func (w *Withdrawn) Know() { w.Count.Know(false, true) }

// begun says that the answer of a withdrawn request had begun.
type begun bool

// Labels has the labels of the key in metrics.
func (b begun) Labels() []attribute.KeyValue {
	return []attribute.KeyValue{attribute.Bool("begun", bool(b))}
}
