package past

import (
	"container/list"
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

const (
	// affineSessions bounds the sessions that affinity remembers, topSessions the listed ones.
	affineSessions = 1024
	topSessions    = 20
)

// Affinity measures whether consistent-hash keeps sessions on their ranks. Sessions are counted by
// place in the list of the busiest, never by name: names belong to the callers.
type Affinity struct {
	fallbacks metric.Int64Counter
	built     metric.Float64Histogram
	rate      metric.Float64ObservableGauge
	top       metric.Int64ObservableGauge

	mu     sync.Mutex
	recent []bool                   // whether the last requests found their session's rank again; guarded by mu
	next   int                      // of recent, when it is full; guarded by mu
	known  map[string]*list.Element // of used; guarded by mu
	used   list.List                // *affine, the least recently seen first; guarded by mu
}

type affine struct {
	session  string
	slot     replica.Slot
	requests int64
}

// NewAffinity declares the metrics of rings.
func NewAffinity(s *instruments.Set, ring selector.RingConfig) *Affinity {
	a := &Affinity{recent: make([]bool, 0, ring.AffinityWindow), known: map[string]*list.Element{}}
	var places []metric.MeasurementOption
	for n := -1; n <= ring.Fallbacks; n++ {
		if n != 0 {
			places = append(places, byRank(n))
		}
	}
	a.fallbacks = s.CounterBy("kvpilot.chooser.ring_fallbacks", "{request}", "Consistent-hash requests that the ring's owner did not serve, by the successor that served them; -1 is a rank beyond the successors.", places...)
	a.built = s.Histogram("kvpilot.chooser.ring_rebuild.duration", "s", "Time to build a consistent-hash ring.", 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1)
	a.rate = s.ObservedFloat("kvpilot.chooser.affinity_rate", "1", "Share of the last consistent-hash requests (chooser.ring.affinity_window) on the previous rank of their session; 1 before the first request.")
	a.top = s.ObservedGauge("kvpilot.chooser.top_sessions", "{request}", "Requests of the busiest consistent-hash sessions among the last 1024 seen, by position from 1 to 20.")
	return a
}

// Observe reports the metrics that are read at collection.
func (a *Affinity) Observe(o metric.Observer) {
	share, busiest := a.read()
	o.ObserveFloat64(a.rate, share)
	for i, n := range busiest {
		o.ObserveInt64(a.top, n, metric.WithAttributes(attribute.Int("place", i+1)))
	}
}

func byRank(n int) metric.MeasurementOption { return instruments.Label("rank", strconv.Itoa(n)) }

// routed counts a request of session that consistent-hash sent to slot. place is the slot's place on the
// ring (0: none).
func (a *Affinity) routed(session string, slot replica.Slot, place int) {
	if place != 1 {
		a.fallbacks.Add(context.Background(), 1, byRank(place-1))
	}
	if session == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.known[session]
	if e == nil {
		if len(a.known) >= affineSessions {
			oldest := a.used.Front()
			delete(a.known, a.used.Remove(oldest).(*affine).session)
		}
		a.known[session] = a.used.PushBack(&affine{session: session, slot: slot, requests: 1})
		return
	}
	a.used.MoveToBack(e)
	was := e.Value.(*affine)
	again := was.slot == slot
	was.slot = slot
	was.requests++
	if len(a.recent) < cap(a.recent) {
		a.recent = append(a.recent, again)
		return
	}
	a.recent[a.next] = again
	a.next = (a.next + 1) % len(a.recent)
}

// rebuilt counts a ring that took so long to build.
func (a *Affinity) rebuilt(took time.Duration) {
	a.built.Record(context.Background(), took.Seconds())
}

// read returns the affinity rate and the requests of the busiest sessions, most first.
func (a *Affinity) read() (share float64, busiest []int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for e := a.used.Front(); e != nil; e = e.Next() {
		busiest = append(busiest, e.Value.(*affine).requests)
	}
	slices.SortFunc(busiest, func(x, y int64) int { return int(y - x) })
	if len(a.recent) == 0 {
		return 1, busiest[:min(topSessions, len(busiest))]
	}
	kept := 0
	for _, again := range a.recent {
		if again {
			kept++
		}
	}
	return float64(kept) / float64(len(a.recent)), busiest[:min(topSessions, len(busiest))]
}
