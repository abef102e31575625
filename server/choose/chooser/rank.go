package chooser

import (
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/choose/liveness"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// rank is the chooser's own record of one slot: how fast it is and how much prefill was
// sent to it lately. Readers take no lock.
type rank struct {
	// Fields that every choice reads come first: they fit in two cache lines.
	known    atomic.Pointer[replica.Replica] // the source of kind
	model    atomic.Pointer[speed.Model]     // the result of speed
	work     number                          // mean prefill time of a request in seconds
	lately   lately
	avoided  atomic.Pointer[conduct.Record] // the record of conduct against the rank
	liveness liveness.Monitor
	counters speed.Counters
	conduct  *conduct.Rank
	leaving  atomic.Bool // its replica's requests are to move to others

	slot    replica.Slot
	replica replica.ID
	index   int
	speed   *speed.Rank
	// labels name the rank in metrics.
	labels   metric.MeasurementOption
	accuracy accuracy

	mu sync.Mutex // serialises route and unroute

	_ [32]byte // allocated at the beginning of a cache line
}

// newRank makes the memory of rank index of r, whose speed it knows; its conduct is set by the table.
func newRank(slot replica.Slot, r *replica.Replica, index int, of *speed.Rank) *rank {
	rk := &rank{slot: slot, replica: r.ID, index: index, speed: of, labels: instruments.Rank(string(r.ID), index)}
	rk.known.Store(r)
	rk.speed.Mirror(&rk.model)
	return rk
}

// leastSaved is the prefill time in seconds from which a request counts as having come back.
const leastSaved = 0.01

// route counts a request sent to the rank at now: its predicted prefill, and the part that the cache spares it.
func (r *rank) route(seconds, saved float64, now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := &r.lately
	keep := l.fade(now)
	count := func(n *number, v float64) { n.set(keep*n.get() + v/busyMemory.Seconds()) }
	count(&l.busy, seconds)
	count(&l.squares, seconds*seconds/2)
	count(&l.saved, saved)
	returned := 0.0
	if saved > leastSaved {
		returned = 1
	}
	count(&l.returns, returned)
	l.at.Store(now)
	if w := r.work.get(); w == 0 {
		r.work.set(seconds)
	} else {
		r.work.set(w + (seconds-w)/16)
	}
}

// unroute uncounts the prefill of a booking that the engine shows no request for.
func (r *rank) unroute(seconds float64, now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := &r.lately
	keep := l.fade(now)
	uncount := func(n *number, v float64) { n.set(max(0, keep*n.get()-v/busyMemory.Seconds())) }
	uncount(&l.busy, seconds)
	uncount(&l.squares, seconds*seconds/2)
	uncount(&l.saved, 0)
	uncount(&l.returns, 0)
	l.at.Store(now)
}

// near reads a little of the account.
func (r *rank) near() uint64 { return uint64(r.lately.at.Load()) + uint64(r.liveness.InFlight()) }

// load is the share of the rank's time that the prefill routed to it lately takes.
func (r *rank) load(now int64) float64 {
	return r.lately.busy.get() * r.lately.fade(now)
}

// wholes are e^-n, parts e^-(k/64).
//
