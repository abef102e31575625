package standby

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// Registry has the replicas; *registry.Registry does.
type Registry interface {
	Snapshot() *registry.Snapshot
	// Refresh has a replica probed at once.
	Refresh(id replica.ID)
}

// Demand knows how many replicas pools need; *demand.Demand does.
type Demand interface {
	// WantedNow is the number of replicas that the model's pool needs.
	WantedNow(model string) int
}

// Params are the arguments of New.
type Params struct {
	Registry Registry
	// Engines knows which engines sleep; nil: none does. Client wakes them, as many as Demand says; both are needed with Config.Wake only.
	Engines Engines
	Client  Caller
	Demand  Demand
	Scope   scope.Scope
}

type metrics struct {
	Waits  instruments.Keyed[string] `metric:"kvpilot.pool.waits" unit:"{request}" by:"result" values:"ready full timeout shutdown left" help:"Requests that found no ready replica of a model of scaling.models, by result: ready (a replica came in time), timeout, full (too many waited), left (the client went) or shutdown."`
	Waited metric.Float64Histogram   `metric:"kvpilot.pool.wait" unit:"s" bounds:"0.1 0.5 1 2.5 5 10 30 60 120 300 600" help:"Time that requests waited for the first ready replica of their model."`
	Wakes  instruments.Keyed[string] `metric:"kvpilot.pool.wakes" unit:"{wake}" by:"result" help:"Calls to wake engines (scaling.wake), by result: woken, refused (an unknown call) or failed."`
}

// Room holds requests. Make one with New.
type Room struct {
	config   Config
	registry Registry
	engines  Engines // nil: none sleeps
	demand   Demand
	waker    *waker
	nudge    chan struct{} // a request waits
	metrics  metrics

	mu     sync.Mutex
	held   map[string]int // requests that wait, by model; guarded by mu
	count  int            // guarded by mu
	bytes  int64          // guarded by mu
	probed atomic.Int64   // when replicas were probed last, in Unix nanoseconds
	// leave ends all waits.
	leave chan struct{}
	once  sync.Once
}

// The errors of Wait.
var (
	// ErrFull: too many requests wait, or too large ones.
	ErrFull = errors.New("too many requests wait for a replica")
	// ErrTimeout: no replica became ready in time.
	ErrTimeout = errors.New("no replica became ready in time")
	// ErrClosed: the router stops.
	ErrClosed = errors.New("the router is stopping")
)

// New makes a Room of a valid Config.
func New(c Config, p Params) *Room {
	r := &Room{config: c, registry: p.Registry, engines: p.Engines, demand: p.Demand, nudge: make(chan struct{}, 1), held: map[string]int{}, leave: make(chan struct{})}
	instruments.Declare(p.Scope.Meters(), "server/route/standby", &r.metrics)
	r.waker = newWaker(p, &r.metrics.Wakes)
	return r
}

// Scales reports whether something scales the model's pool.
func (r *Room) Scales(model string) bool { return r != nil && slices.Contains(r.config.Models, model) }

// HoldsAny reports whether requests for any model may wait.
func (r *Room) HoldsAny() bool { return r != nil && len(r.config.Models) > 0 }

// Waiting is the number of requests that wait for a replica of the model.
func (r *Room) Waiting(model string) int {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held[model]
}

// ready reports whether a replica of the model takes requests: an engine that sleeps does not, although it answers its health probes.
func (r *Room) ready(view *registry.Snapshot, model string) bool {
	pool, ok := view.Pool(model)
	return ok && slices.ContainsFunc(pool.Replicas, func(one *replica.Replica) bool {
		return one.State == replica.StateReady && r.sleep(one) == enginestats.Awake
	})
}

func (r *Room) sleep(of *replica.Replica) enginestats.Sleep {
	if r.engines == nil {
		return enginestats.Awake
	}
	return r.engines.Sleep(of)
}

// Wait blocks until a replica of the model is ready, for requests of models that something scales; for others, and where one is ready, it
// returns at once. begins is called before it blocks. size is the memory that the request holds. It returns ErrFull, ErrTimeout, ErrClosed
// or the context's cause.
func (r *Room) Wait(ctx context.Context, model string, size int, begins func()) (waited time.Duration, err error) {
	if !r.Scales(model) || r.ready(r.registry.Snapshot(), model) {
		return 0, nil
	}
	if !r.enter(model, int64(size)) {
		r.end(ErrFull)
		return 0, ErrFull
	}
	defer r.exit(model, int64(size))
	begins()
	select {
	case r.nudge <- struct{}{}:
	default:
	}
	began := time.Now()
	err = r.await(ctx, model)
	waited = time.Since(began)
	r.end(err)
	r.metrics.Waited.Record(context.Background(), waited.Seconds())
	return waited, err
}

func (r *Room) end(err error) {
	result := "left"
	switch {
	case err == nil:
		result = "ready"
	case errors.Is(err, ErrFull):
		result = "full"
	case errors.Is(err, ErrTimeout):
		result = "timeout"
	case errors.Is(err, ErrClosed):
		result = "shutdown"
	}
	r.metrics.Waits.Add(result)
}

// probeEach is how often replicas that are not ready are probed while requests wait, mostProbed how many of them.
const (
	probeEach  = 150 * time.Millisecond
	mostProbed = 32
)

func (r *Room) await(ctx context.Context, model string) error {
	limit := time.NewTimer(r.config.MaxWait)
	defer limit.Stop()
	probe := time.NewTicker(probeEach)
	defer probe.Stop()
	for {
		view := r.registry.Snapshot()
		if r.ready(view, model) {
			return nil
		}
		select {
		case <-view.Superseded():
		case now := <-probe.C:
			if last := r.probed.Load(); now.UnixNano()-last >= int64(probeEach)/2 && r.probed.CompareAndSwap(last, now.UnixNano()) {
				r.probe() // one of the requests that wait does
			}
		case <-limit.C:
			return ErrTimeout
		case <-r.leave:
			return ErrClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// probe has replicas that are not ready probed.
func (r *Room) probe() {
	n := 0
	for _, one := range r.registry.Snapshot().Replicas {
		if one.State != replica.StateStarting && one.State != replica.StateUnhealthy {
			continue
		}
		r.registry.Refresh(one.ID)
		if n++; n == mostProbed {
			return
		}
	}
}

func (r *Room) enter(model string, size int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count >= r.config.MaxRequests || r.bytes+size > int64(r.config.MaxBytes) {
		return false
	}
	r.count++
	r.bytes += size
	r.held[model]++
	return true
}

func (r *Room) exit(model string, size int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count--
	r.bytes -= size
	if r.held[model]--; r.held[model] == 0 {
		delete(r.held, model)
	}
}

// lookEach is how often the pools are compared with their demand.
const lookEach = time.Second

// Run wakes sleeping engines (Config.Wake) until ctx ends: the first one of a pool when a request waits, further ones as the pool's demand grows.
func (r *Room) Run(ctx context.Context) error {
	defer r.waker.calls.Wait()
	if !r.config.Wake || r.engines == nil {
		<-ctx.Done()
		return nil
	}
	look := time.NewTicker(lookEach)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		case <-r.nudge:
		}
		view := r.registry.Snapshot()
		for _, model := range r.config.Models {
			r.wake(ctx, view, model)
		}
	}
}

// wake wakes the engines that a model's pool lacks.
func (r *Room) wake(ctx context.Context, view *registry.Snapshot, model string) {
	pool, ok := view.Pool(model)
	if !ok {
		return
	}
	awake, sleeping := 0, []*replica.Replica(nil)
	for _, one := range pool.Replicas {
		if one.State != replica.StateReady {
			continue
		}
		switch r.sleep(one) {
		case enginestats.Awake:
			awake++
		case enginestats.WeightsOffloaded:
			sleeping = append(sleeping, one)
		case enginestats.DiscardAll: // its weights are gone
		}
	}
	wanted := min(r.Waiting(model), 1)
	if r.demand != nil && len(sleeping) > 0 {
		wanted = max(wanted, r.demand.WantedNow(model))
	}
	r.waker.some(ctx, wanted-awake, sleeping, time.Now())
}

// Close ends all waits, now and later. It is idempotent.
func (r *Room) Close() {
	if r != nil {
		r.once.Do(func() { close(r.leave) })
	}
}
