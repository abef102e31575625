package placement

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/kvpilot/kvpilot/server/choose/adapters"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

const (
	// callTimeout bounds one call: an adapter may come from far.
	callTimeout = 5 * time.Minute
	// leastRest is how long a call that failed is not repeated; each further failure doubles it, up to mostRest.
	leastRest, mostRest = 30 * time.Second, time.Hour
	// settled is how long after a change no other one is made of the same adapter on the same replica: until the registry lists it.
	settled = 2 * time.Second
	// maxReply bounds the answer to a call.
	maxReply = 64 << 10
)

// Registry has the replicas; *registry.Registry does.
type Registry interface {
	Snapshot() *registry.Snapshot
	// Refresh has a replica probed at once.
	Refresh(id replica.ID)
}

// Record knows the demand; *chooser.Chooser does.
type Record interface {
	AdapterDemands() []adapters.Demand
	// AdapterInFlight counts the requests of an adapter on a replica.
	AdapterInFlight(r *replica.Replica, adapter string) int
	AdapterLoaded(r *replica.Replica, adapter string, loaded bool)
}

// Caller sends requests to replicas; *upstream.Client does.
type Caller interface {
	Do(ctx context.Context, t upstream.Target, r *upstream.Request) (*upstream.Response, error)
}

// Fleet divides the replicas among routers; *fleet.Fleet does.
type Fleet interface {
	// Decides reports whether this router decides for a replica's pool.
	Decides(id replica.ID) bool
}

// Params are the arguments of New.
type Params struct {
	Registry Registry
	Record   Record
	Client   Caller
	// Fleet says whether this router places the adapters of a replica; nil: it is alone.
	Fleet Fleet
	Scope scope.Scope
}

type metrics struct {
	Changes instruments.Keyed[change] `metric:"kvpilot.adapters.changes" unit:"{change}" by:"action result" help:"Adapters loaded and unloaded by rule (adapters.spread), by result: done, refused (by the engine) or failed (no answer)."`
}

// Rule places adapters. Make one with New.
type Rule struct {
	config  Config
	params  Params
	metrics metrics

	calls  sync.WaitGroup
	mu     sync.Mutex
	loaded map[key]*placed      // guarded by mu
	rests  map[key]*rest        // of calls that failed; guarded by mu
	busy   map[replica.ID]*step // the call that runs; guarded by mu
}

// rest is the time for which a call that failed is not repeated.
type rest struct {
	until time.Time
	next  time.Duration
}

// change is a change of a replica, with its result.
type change struct{ action, result string }

// Labels has the labels of the key in metrics.
func (c change) Labels() []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("action", c.action), attribute.String("result", c.result)}
}

// New makes a Rule of a valid Config.
func New(c Config, p Params) *Rule {
	r := &Rule{config: c, params: p, loaded: map[key]*placed{}, rests: map[key]*rest{}, busy: map[replica.ID]*step{}}
	instruments.Declare(p.Scope.Meters(), "server/route/placement", &r.metrics)
	for _, action := range []string{"load", "unload"} {
		for _, result := range []string{"done", "refused", "failed"} {
			r.metrics.Changes.Know(change{action, result})
		}
	}
	return r
}

// Run looks at the demand until ctx ends.
func (r *Rule) Run(ctx context.Context) error {
	defer r.calls.Wait()
	if !r.config.Spread {
		<-ctx.Done()
		return nil
	}
	each := time.NewTicker(r.config.Interval)
	defer each.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-each.C:
			r.look(ctx, time.Now())
		}
	}
}

// look begins the calls that are due.
func (r *Rule) look(ctx context.Context, now time.Time) {
	uses := map[string]float64{}
	for _, d := range r.params.Record.AdapterDemands() {
		uses[d.Adapter] = d.Uses
	}
	s := r.params.Registry.Snapshot()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(s)
	for _, g := range groups(s, uses) {
		if len(g.replicas) == 0 || r.params.Fleet != nil && !r.params.Fleet.Decides(g.replicas[0].ID) {
			continue
		}
		for i := range g.adapters {
			for _, s := range r.busy {
				if s.load && s.adapter == g.adapters[i].name {
					g.adapters[i].coming++
				}
			}
		}
		for _, one := range g.plan(&r.config, r.loaded, func(k key) bool { return r.resting(k, now) }, now) {
			if !one.load && r.params.Record.AdapterInFlight(one.on, one.adapter) > 0 {
				continue
			}
			r.busy[one.on.ID] = &one
			r.calls.Go(func() { r.make(ctx, &one) })
		}
	}
}

// forget drops the notes on replicas that are gone, or that no longer list an adapter. A new one may be listed late. r.mu is held.
func (r *Rule) forget(s *registry.Snapshot) {
	for k, p := range r.loaded {
		of, known := s.Replica(k.replica)
		if known && r.busy[k.replica] == nil && of.State == replica.StateReady {
			_, lists := of.Serves(k.adapter)
			known, p.listed = lists || !p.listed && p.life == of.Life, p.listed || lists
		}
		if !known {
			delete(r.loaded, k)
		}
	}
	for k := range r.rests {
		if _, known := s.Replica(k.replica); !known {
			delete(r.rests, k)
		}
	}
}

// resting reports whether no call about an adapter may go to a replica now. r.mu is held.
func (r *Rule) resting(k key, now time.Time) bool {
	if r.busy[k.replica] != nil {
		return true
	}
	known := r.rests[k]
	return known != nil && now.Before(known.until)
}

// make makes a change, and notes its result.
func (r *Rule) make(ctx context.Context, s *step) {
	began := time.Now()
	status, err := r.call(ctx, s)
	action, path := "load", s.path
	if !s.load {
		action, path = "unload", ""
	}
	log := r.params.Scope.Log().With("replica", string(s.on.ID), "adapter", s.adapter, "action", action, "took", time.Since(began).Round(time.Millisecond))
	k := key{s.on.ID, s.adapter}
	result := "done"
	switch {
	case ctx.Err() != nil:
	case err != nil:
		result = "failed"
		log.Warn("an adapter could not be placed", "error", err)
	case status != http.StatusOK:
		result = "refused"
		log.Warn("an engine refused to change its adapters: run-time updates need VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "status", status, "path", path)
	default:
		r.params.Record.AdapterLoaded(s.on, s.adapter, s.load)
		log.Info("an adapter was placed by demand")
	}
	if ctx.Err() == nil {
		r.metrics.Changes.Add(change{action, result})
		r.params.Registry.Refresh(s.on.ID)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.busy, s.on.ID)
	if result != "done" {
		known := r.rests[k]
		if known == nil {
			known = &rest{next: leastRest}
			r.rests[k] = known
		}
		known.until, known.next = time.Now().Add(known.next), min(2*known.next, mostRest)
		return
	}
	r.rests[k] = &rest{until: time.Now().Add(settled), next: leastRest}
	if s.load {
		r.loaded[k] = &placed{life: s.on.Life}
	} else {
		delete(r.loaded, k)
	}
}

// call sends one call, and returns the status of its answer.
func (r *Rule) call(ctx context.Context, s *step) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	in, path := map[string]string{"lora_name": s.adapter}, "/v1/unload_lora_adapter"
	if s.load {
		in["lora_path"], path = s.path, "/v1/load_lora_adapter"
	}
	body, err := json.Marshal(in)
	if err != nil {
		return 0, err
	}
	resp, err := r.params.Client.Do(ctx, upstream.Target{Replica: s.on}, &upstream.Request{Method: http.MethodPost, Path: path, ContentType: "application/json", Body: body})
	if err != nil {
		return 0, err
	}
	defer resp.Close()
	if _, err := resp.ReadAll(maxReply); err != nil {
		return 0, err
	}
	return resp.Status, nil
}
