package rank

import (
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser/number"
	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/choose/liveness"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// Rank is the chooser's own record of one slot: how fast it is and how much prefill was
// sent to it lately. Readers take no lock.
type Rank struct {
	// Fields that every choice reads come first: they fit in two cache lines.
	Known    atomic.Pointer[replica.Replica] // the source of kind
	Model    atomic.Pointer[speed.Model]     // the result of speed
	Work     number.Float                    // mean prefill time of a request in seconds
	Lately   lately
	Avoided  atomic.Pointer[conduct.Record] // the record of conduct against the rank
	Liveness liveness.Monitor
	Counters speed.Counters
	Conduct  *conduct.Rank
	Leaving  atomic.Bool // its replica's requests are to move to others

	Slot    replica.Slot
	Replica replica.ID
	Index   int
	Speed   *speed.Rank
	// Labels name the rank in metrics.
	Labels   metric.MeasurementOption
	Accuracy accuracy
	// Tiers are the tiers below its GPU.
	Tiers transfer.Tiers
	// Fetches are its loads from them, and from other engines, by its engine's own counts.
	Fetches *transfer.Fetches

	mu sync.Mutex // serialises route and unroute
	// Its size has it allocated at the beginning of a cache line.
}

// newRank makes the memory of rank index of r, whose speed it knows; its conduct is set by the table.
func newRank(slot replica.Slot, r *replica.Replica, index int, of *speed.Rank) *Rank {
	rk := &Rank{Slot: slot, Replica: r.ID, Index: index, Speed: of, Labels: instruments.Rank(string(r.ID), index), Fetches: transfer.NewFetches()}
	rk.Known.Store(r)
	rk.Speed.Mirror(&rk.Model)
	return rk
}

// leastSaved is the prefill time in seconds from which a request counts as having come back.
const leastSaved = 0.01

// Route counts a request sent to the rank at now: its predicted prefill, and the part that the cache spares it.
func (r *Rank) Route(seconds, saved float64, now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := &r.Lately
	keep := l.fade(now)
	count := func(n *number.Float, v float64) { n.Set(keep*n.Get() + v/busyMemory.Seconds()) }
	count(&l.busy, seconds)
	count(&l.squares, seconds*seconds/2)
	count(&l.saved, saved)
	returned := 0.0
	if saved > leastSaved {
		returned = 1
	}
	count(&l.returns, returned)
	l.at.Store(now)
	if w := r.Work.Get(); w == 0 {
		r.Work.Set(seconds)
	} else {
		r.Work.Set(w + (seconds-w)/16)
	}
}

// Unroute uncounts the prefill of a booking that the engine shows no request for.
func (r *Rank) Unroute(seconds float64, now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := &r.Lately
	keep := l.fade(now)
	uncount := func(n *number.Float, v float64) { n.Set(max(0, keep*n.Get()-v/busyMemory.Seconds())) }
	uncount(&l.busy, seconds)
	uncount(&l.squares, seconds*seconds/2)
	uncount(&l.saved, 0)
	uncount(&l.returns, 0)
	l.at.Store(now)
}

// Near reads a little of the account.
func (r *Rank) Near() uint64 { return uint64(r.Lately.at.Load()) + uint64(r.Liveness.InFlight()) }

// load is the share of the rank's time that the prefill routed to it lately takes.
func (r *Rank) load(now int64) float64 {
	return r.Lately.busy.Get() * r.Lately.fade(now)
}

// wholes are e^-n, parts e^-(k/64).
//
