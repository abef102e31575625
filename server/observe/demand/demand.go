package demand

import (
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

const (
	// mostPools bounds the pools that are remembered; requests of further ones are not counted.
	mostPools = 64
	// memory is the time after which work counts 1/e.
	memory = time.Minute
	// soon is the time in which the wanted replicas serve the requests that wait.
	soon = 30 * time.Second
	// leastLoad is the offered load below which a pool without requests needs no replica: the rest of the last one is forgotten.
	leastLoad = 0.005
	// usualWork is the work of a request before any is known, usualOutput the tokens of an answer of which none is expected, usualShare
	// the share of a replica that an answer takes whose memory is not known.
	usualWork, usualOutput, usualShare = 1.0, 256, 1.0 / 32
)

// State is the work that a pool has already.
type State struct {
	// Running requests are on replicas, Waiting ones wait for a replica or for room on one.
	Running, Waiting int
}

// Pools have the states of pools.
type Pools interface {
	// State returns the state of a model's pool.
	State(model string) State
}

// Params are the arguments of New.
type Params struct {
	// Utilization is the share of a replica's time that is to be used, above 0 and at most 1.
	Utilization float64
	// Models have series before their first request.
	Models []string
	// Pools have the states; nil: all are idle.
	Pools Pools
	Meter metric.MeterProvider
}

// Demand measures the work of pools. Make one with New.
type Demand struct {
	params Params

	mu    sync.Mutex
	pools map[string]*pool // by model as clients name it; guarded by mu
}

// pool is the work of a pool's requests, as it was at a moment.
type pool struct {
	at             time.Time
	work, requests float64
}

// New makes a Demand without requests.
func New(p Params) *Demand {
	d := &Demand{params: p, pools: map[string]*pool{}}
	for _, model := range p.Models[:min(len(p.Models), mostPools)] {
		d.pools[model] = &pool{}
	}
	s := instruments.New(p.Meter, "server/observe/demand")
	wanted := s.ObservedGauge("kvpilot.pool.wanted_replicas", "{replica}",
		"Replicas that a pool needs for its predicted work, by model; for autoscalers. Of a fleet's routers the largest value counts. The first 64 models, and those of scaling.models, have series.")
	offered := s.ObservedFloat("kvpilot.pool.offered_load", "{replica}", "Predicted work of the last minute's requests, in busy replicas, by model.")
	waiting := s.ObservedGauge("kvpilot.pool.waiting", "{request}", "Requests that wait for a replica of their pool, or for room on one, by model.")
	s.Observe(func(o metric.Observer) {
		now := time.Now()
		for _, model := range d.models() {
			state := d.state(model)
			label := instruments.Label("model", model)
			o.ObserveInt64(wanted, int64(d.Wanted(model, state, now)), label)
			o.ObserveFloat64(offered, d.load(model, now), label)
			o.ObserveInt64(waiting, int64(state.Waiting), label)
		}
	})
	return d
}

func (d *Demand) models() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.pools))
}

func (d *Demand) state(model string) State {
	if d.params.Pools == nil {
		return State{}
	}
	return d.params.Pools.State(model)
}

// Decision adds the work of a request that a replica was chosen for. Dry runs, further attempts and choices of other routers add none.
func (d *Demand) Decision(of *decision.Decision) {
	if of.DryRun || of.Attempt > 0 || of.DecidedBy != "" || of.Pick() == nil {
		return
	}
	d.add(of.Request.Model, workOf(of), of.At)
}

func (d *Demand) add(model string, work float64, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.pools[model]
	if p == nil {
		if len(d.pools) >= mostPools {
			return
		}
		p = &pool{}
		d.pools[model] = p
	}
	p.forget(now)
	p.work += work
	p.requests++
}

// forget lets time pass.
func (p *pool) forget(now time.Time) {
	if !p.at.IsZero() && now.After(p.at) {
		left := math.Exp(-float64(now.Sub(p.at)) / float64(memory))
		p.work *= left
		p.requests *= left
	}
	if now.After(p.at) {
		p.at = now
	}
}

// workOf is the predicted work of a request, in seconds of the replica that was chosen.
func workOf(of *decision.Decision) float64 {
	pick := of.Pick()
	output := float64(of.ExpectedOutput)
	if output <= 0 {
		output = usualOutput
	}
	share := usualShare
	if capacity := float64(pick.Blocks) * float64(pick.BlockSize); capacity > 0 {
		share = min(1, (float64(of.PromptTokens)+output/2)/capacity)
	}
	work := pick.Prefill + output*pick.TPOT*share
	if math.IsNaN(work) || math.IsInf(work, 0) || work < 0 {
		return 0
	}
	return work
}

// load is the work that arrives per second.
func (d *Demand) load(model string, now time.Time) float64 {
	work, _ := d.look(model, now)
	return work / memory.Seconds()
}

// look returns the work of the last time, and the number of requests that it is of.
func (d *Demand) look(model string, now time.Time) (work, requests float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.pools[model]
	if p == nil {
		return 0, 0
	}
	p.forget(now)
	return p.work, p.requests
}

// WantedNow is Wanted in the pool's state now.
func (d *Demand) WantedNow(model string) int { return d.Wanted(model, d.state(model), time.Now()) }

// Wanted is the number of replicas that the model's pool needs in state s at the time now: 0 when it has nothing to do. The metric
// kvpilot.pool.wanted_replicas is this number in the state that Params.Pools returns.
func (d *Demand) Wanted(model string, s State, now time.Time) int {
	work, requests := d.look(model, now)
	mean := usualWork
	if requests > 0 && work > 0 {
		mean = work / requests
	}
	busy := work/memory.Seconds() + float64(s.Waiting)*mean/soon.Seconds()
	if s.Running+s.Waiting == 0 && busy < leastLoad {
		return 0
	}
	return max(1, int(math.Ceil(busy/d.params.Utilization)))
}
