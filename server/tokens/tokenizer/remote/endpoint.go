package remote

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// support is the state of a route of one endpoint.
type support int32

const (
	supportUnknown support = iota
	supportYes
	supportNo
)

// endpoint is one replica as a tokenizer.
type endpoint struct {
	id     replica.ID
	target upstream.Target // without ranks: any of them tokenizes
	life   uint64
	vers   version
	rust   bool

	inflight atomic.Int32  // waiting and running
	slots    chan struct{} // one token per running question
	lastUsed atomic.Int64  // unix nanoseconds
	coolTill atomic.Int64  // unix nanoseconds; set by Retry-After
	rests    atomic.Int32  // consecutive answers after which it rested
	render   atomic.Int32  // support of the render routes
	native   atomic.Int32  // support of the render routes of other formats
	handoff  atomic.Int32  // support of ids in kv_transfer_params
	breaker  *breaker.Breaker
	tally    tally
}

func newEndpoint(r *replica.Replica, concurrency int, now time.Time) *endpoint {
	e := &endpoint{
		id: r.ID, target: upstream.Target{Replica: &replica.Replica{ID: r.ID, URL: r.URL, APIKey: r.APIKey, TLS: r.TLS}}, life: r.Life,
		vers: parseVersion(r.Version), rust: r.RustFrontend,
		slots: make(chan struct{}, concurrency), breaker: newBreaker(),
	}
	e.lastUsed.Store(now.UnixNano())
	if e.rust || e.vers.before(0, 18) {
		e.render.Store(int32(supportNo))
	}
	if e.rust || e.vers.before(0, 32) {
		e.native.Store(int32(supportNo))
	}
	if e.rust || e.vers.before(0, 27) {
		e.handoff.Store(int32(supportNo))
	}
	return e
}

// same reports whether the endpoint still describes the replica.
func (e *endpoint) same(r *replica.Replica) bool {
	to := e.target.Replica
	return to.URL == r.URL && to.TLS == r.TLS && to.APIKey == r.APIKey && e.life == r.Life && e.rust == r.RustFrontend && e.vers == parseVersion(r.Version)
}

// cool keeps questions away for d, at most mostCool. An answer to a probe ends it.
func (e *endpoint) cool(now time.Time, d time.Duration) {
	e.coolTill.Store(now.Add(min(d, mostCool)).UnixNano())
}

// rest cools an endpoint whose route is missing or that refuses prompts which others answer: a second at first, twice as long each time.
func (e *endpoint) rest(now time.Time) {
	e.cool(now, firstRest<<min(e.rests.Add(1)-1, 6))
}

// works notes an answer.
func (e *endpoint) works() {
	e.rests.Store(0)
}

// usable reports whether the endpoint may be asked now.
func (e *endpoint) usable(now time.Time) bool {
	return e.coolTill.Load() <= now.UnixNano() && e.breaker.State(e.id) != breaker.Open
}

// isOpen reports whether its breaker is not closed.
func (e *endpoint) isOpen() bool { return e.breaker.State(e.id) != breaker.Closed }

// table is the set of known endpoints. Readers take no lock.
type table struct {
	cfg  Config
	live atomic.Pointer[map[replica.ID]*endpoint]
	mu   sync.Mutex // serialises writers
}

func newTable(cfg Config) *table {
	t := &table{cfg: cfg}
	t.live.Store(&map[replica.ID]*endpoint{})
	return t
}

// get returns the replica's endpoint, making one when there is room, or nil.
func (t *table) get(r *replica.Replica, now time.Time) *endpoint {
	if e := (*t.live.Load())[r.ID]; e != nil && e.same(r) {
		return e
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := *t.live.Load()
	if e := old[r.ID]; e != nil && e.same(r) {
		return e
	}
	next := maps.Clone(old)
	delete(next, r.ID)
	if len(next) >= t.cfg.MaxEndpoints && !t.evictOne(next, now) {
		return nil
	}
	e := newEndpoint(r, t.cfg.Concurrency, now)
	next[r.ID] = e
	t.live.Store(&next)
	return e
}

// evictOne removes an endpoint that fails, or else the endpoint that is idle for longest.
func (t *table) evictOne(m map[replica.ID]*endpoint, now time.Time) bool {
	var victim *endpoint
	for _, e := range m {
		if e.inflight.Load() > 0 {
			continue
		}
		if e.isOpen() {
			victim = e
			break
		}
		idle := now.UnixNano() - e.lastUsed.Load()
		if idle >= int64(t.cfg.HealthPeriod) && (victim == nil || e.lastUsed.Load() < victim.lastUsed.Load()) {
			victim = e
		}
	}
	if victim == nil {
		return false
	}
	delete(m, victim.id)
	return true
}

// expire forgets endpoints that were not used for the TTL and are not in use.
func (t *table) expire(now time.Time) int {
	if t.cfg.TTL <= 0 {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	next := maps.Clone(*t.live.Load())
	before := len(next)
	maps.DeleteFunc(next, func(_ replica.ID, e *endpoint) bool {
		return e.inflight.Load() == 0 && now.UnixNano()-e.lastUsed.Load() >= int64(t.cfg.TTL)
	})
	t.live.Store(&next)
	return before - len(next)
}
