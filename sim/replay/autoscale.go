package replay

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/observe/demand"
	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

// Scaling is an autoscaler in the form of Kubernetes' HorizontalPodAutoscaler. Times are in seconds.
type Scaling struct {
	// Rules are played one by one under predicted-ttft; none: all replicas run all the time.
	Rules []ScaleRule
	// Start is the time from the order of a replica until it is ready. It costs GPUs from the order on.
	Start float64
	// Least is the smallest number of replicas, with which a run begins; the largest one is Engines.Replicas. With 0, the first request has
	// one started at the next look, as KEDA does.
	Least int
	// Sync is the time between two looks at the metric, Stabilize the time over which the highest number counts before replicas are stopped, and Down
	// the least time between two that are stopped. A replica that is stopped finishes its requests first.
	Sync, Stabilize, Down float64
	// Tolerance is the relative difference to the number of replicas that is ignored.
	Tolerance float64
	// Utilization is scaling.utilization of the product, for ScaleWanted.
	Utilization float64
}

// DefaultScaling has Kubernetes' and deploy/autoscaling's defaults, and replicas that start in 90 s.
func DefaultScaling() Scaling {
	return Scaling{Start: 90, Least: 1, Sync: 15, Stabilize: 300, Down: 60, Tolerance: 0.1, Utilization: 0.5}
}

func (c *Scaling) check(o *Options) error {
	if len(c.Rules) == 0 {
		return nil
	}
	var errs []error
	for _, r := range c.Rules {
		if err := r.check(); err != nil || r == (ScaleRule{}) {
			errs = append(errs, fmt.Errorf("autoscaler %s: %w", r, errScaleRule))
		}
		if r.Kind == ScaleFixed && int(r.N) > o.Replicas {
			errs = append(errs, fmt.Errorf("autoscaler %s: there are at most %d replicas", r, o.Replicas))
		}
	}
	if c.Least < 0 || c.Least > o.Replicas {
		errs = append(errs, fmt.Errorf("at least %d replicas: must be from 0 to %d", c.Least, o.Replicas))
	}
	if !(c.Start >= 0 && c.Stabilize >= 0 && c.Down >= 0 && c.Tolerance >= 0) || !(c.Sync > 0) {
		errs = append(errs, errors.New("the autoscaler's times must not be negative, and it must look at the metric at times"))
	}
	if !(c.Utilization > 0 && c.Utilization <= 1) {
		errs = append(errs, fmt.Errorf("utilization %v: must be above 0 and at most 1", c.Utilization))
	}
	if o.Routers > 1 || len(o.Roles) > 0 || o.Answers.Whole || len(o.Turns) > 0 || len(o.Memory)+len(o.Programs) > 0 {
		errs = append(errs, errors.New("an autoscaler is played with one router, streams, replicas without roles and turns, and arrival rates"))
	}
	return errors.Join(errs...)
}

// Scaled is the outcome of an autoscaler in a run.
type Scaled struct {
	// ReplicaSeconds is the time of all replicas from their order to their end, GPUSeconds the time of their GPUs.
	ReplicaSeconds float64 `json:"replica_seconds"`
	GPUSeconds     float64 `json:"gpu_seconds"`
	// Mean and Most are the numbers of replicas over the run, starting and draining ones among them.
	Mean float64 `json:"replicas_mean"`
	Most float64 `json:"replicas_most"`
	// Starts is the number of replicas that were started after the begin of the run.
	Starts float64 `json:"starts"`
	// Lost requests have no complete answer.
	Lost float64 `json:"lost"`
	// Wakes is how many times a replica was started with none there, and Woken the longest time from such an order to the first token of
	// any request.
	Wakes float64 `json:"wakes,omitempty"`
	Woken float64 `json:"first_answer_s,omitempty"`
}

func (s *Scaled) add(other *Scaled, share float64) {
	s.ReplicaSeconds += share * other.ReplicaSeconds
	s.GPUSeconds += share * other.GPUSeconds
	s.Mean += share * other.Mean
	s.Most = max(s.Most, other.Most)
	s.Starts += share * other.Starts
	s.Lost += share * other.Lost
	s.Wakes += share * other.Wakes
	s.Woken = max(s.Woken, other.Woken)
}

// phase is where a replica is in its life.
type phase uint8

const (
	phaseOff phase = iota
	phaseStarting
	phaseReady
	phaseDraining
)

// recommendation is the number of replicas that the metric asked for at a moment.
type recommendation struct {
	at float64
	n  int
}

// autoscaler starts and stops the replicas of a run, and holds the requests that find none.
type autoscaler struct {
	*service
	rule     ScaleRule
	settings Scaling
	profile  *Profile
	demand   *demand.Demand
	phases   []phase
	all      []*replica.Replica // by engine
	held     []int              // requests that wait for the first replica
	recent   []recommendation
	stopped  float64 // when a replica was stopped last
	seen     float64 // until when the replicas' time is counted
	woke     float64 // when a replica was ordered with none there; NaN when its first token has come
	result   Scaled
}

// newAutoscaler makes an autoscaler in front of a service that has all replicas.
func newAutoscaler(v *service, j *job) *autoscaler {
	c := j.options.Scaling
	if j.setup.Scale.Kind == ScaleFixed {
		c.Least = int(j.setup.Scale.N)
	}
	n := len(v.sim.engines)
	a := &autoscaler{
		service: v, rule: j.setup.Scale, settings: c, profile: &j.options.Profile, phases: make([]phase, n),
		all: v.routers[0].replicas, stopped: math.Inf(-1), woke: math.NaN(),
		demand: demand.New(demand.Params{Utilization: c.Utilization, Models: []string{"m"}}),
	}
	r := v.routers[0]
	r.decided = a.demand
	for e := range n {
		if e < c.Least {
			a.phases[e] = phaseReady
		} else {
			a.forget(e)
		}
	}
	a.renew()
	a.result.Most = float64(c.Least)
	if a.rule.Kind != ScaleFixed {
		v.sim.after(c.Sync, a.look)
	}
	return a
}

// count is the number of replicas in some phases.
func (a *autoscaler) count(of ...phase) int {
	n := 0
	for _, p := range a.phases {
		if slices.Contains(of, p) {
			n++
		}
	}
	return n
}

// pass counts the replicas' time up to now.
func (a *autoscaler) pass() {
	n := float64(len(a.phases) - a.count(phaseOff))
	a.result.ReplicaSeconds += n * (a.sim.now - a.seen)
	a.result.Most = max(a.result.Most, n)
	a.seen = a.sim.now
}

// renew gives the router the replicas that are ready, and has it look at the requests that wait.
func (a *autoscaler) renew() {
	var ready []*replica.Replica
	for e, p := range a.phases {
		if p == phaseReady {
			ready = append(ready, a.all[e])
		}
	}
	r := a.routers[0]
	r.replicas = ready
	r.chooser.Changed()
	r.plan()
}

// arrive implements dispatcher.
func (a *autoscaler) arrive(call int) {
	if a.count(phaseReady) == 0 {
		a.held = append(a.held, call)
		return
	}
	a.service.arrive(call)
}

// firstToken implements dispatcher.
func (a *autoscaler) firstToken(of *attempt) {
	if !math.IsNaN(a.woke) {
		a.result.Woken, a.woke = max(a.result.Woken, a.sim.now-a.woke), math.NaN()
	}
	a.service.firstToken(of)
}

// finished implements dispatcher.
func (a *autoscaler) finished(of *attempt) {
	a.service.finished(of)
	a.drained(of.engine)
}

// changed implements dispatcher.
func (a *autoscaler) changed(e int, events []kvEvent) {
	if p := a.phases[e]; p == phaseReady || p == phaseDraining {
		a.service.changed(e, events)
	}
}

// look is the autoscaler's look at its metric.
func (a *autoscaler) look() {
	if a.sim.ended == len(a.sim.trace.Calls) || a.err() != nil {
		return
	}
	a.sim.look()
	current := a.count(phaseStarting, phaseReady)
	desired := a.desired(a.metric(), current)
	for n := current; n < desired; n++ {
		a.start()
	}
	if desired < current && a.sim.now-a.stopped >= a.settings.Down {
		a.stopped = a.sim.now
		a.stop()
	}
	a.sim.after(a.settings.Sync, a.look)
}

// metric is the number of replicas that the rule asks for.
func (a *autoscaler) metric() float64 {
	r := a.routers[0]
	running, queued := 0, 0
	for e, p := range a.phases {
		if p == phaseReady || p == phaseDraining {
			running += r.inFlight(e)
			queued += len(a.sim.engines[e].machine.Waiting())
		}
	}
	waiting := len(a.held) + r.chooser.WaitingFor("m")
	switch a.rule.Kind {
	case ScaleWanted:
		return float64(a.demand.Wanted("m", demand.State{Running: running, Waiting: waiting}, r.Now()))
	case ScaleQueue:
		return float64(queued+waiting) / a.rule.N
	case ScaleRequests:
		return float64(running+waiting) / a.rule.N
	case ScaleFixed:
	}
	return a.rule.N
}

// desired is the number of replicas that Kubernetes' rules make of a metric with the target 1 per replica: the metric unless it is within the
// tolerance, at most twice as many replicas or four more than now, and fewer only as far as all looks of the last time agree.
func (a *autoscaler) desired(metric float64, current int) int {
	n := int(math.Ceil(metric - 1e-9))
	switch {
	case current == 0:
		n = min(n, 1)
	case math.Abs(metric/float64(current)-1) <= a.settings.Tolerance:
		n = current
	}
	n = min(max(n, a.settings.Least), len(a.phases))
	a.recent = append(a.recent, recommendation{a.sim.now, n})
	a.recent = slices.DeleteFunc(a.recent, func(r recommendation) bool { return r.at < a.sim.now-a.settings.Stabilize })
	if n < current {
		for _, r := range a.recent {
			n = max(n, r.n)
		}
		return min(n, current)
	}
	return min(n, max(2*current, current+4))
}

// start orders a replica.
func (a *autoscaler) start() {
	e := slices.Index(a.phases, phaseOff)
	if e < 0 {
		return // all others drain
	}
	a.pass()
	if a.count(phaseReady, phaseStarting) == 0 {
		a.woke = a.sim.now
		a.result.Wakes++
	}
	a.phases[e] = phaseStarting
	a.result.Starts++
	a.sim.after(a.settings.Start, func() { a.started(e) })
}

// started has a replica take requests, with an empty cache.
func (a *autoscaler) started(e int) {
	if a.phases[e] != phaseStarting {
		return // it was stopped before
	}
	r, old := a.routers[0], a.sim.engines[e]
	a.pass()
	a.phases[e] = phaseReady
	a.sim.engines[e] = newEngine(e, a.profile, old.speed, a.sim.trace.block, nil, old.lie)
	enginemodel.LeaveTiers(old.machine)
	a.sim.below.addTo(a.sim.engines[e])
	again := *a.all[e]
	again.ID = replica.ID(fmt.Sprintf("r%d.%d", e, int(a.result.Starts)))
	a.all[e] = &again
	slot := replica.Slot(e)
	r.book.AddRank(slot)
	if err := r.index.AddRank(slot, kvindex.RankInfo{BlockSize: a.sim.trace.block, Capacity: again.Blocks}); err != nil {
		r.err = errors.Join(r.err, err)
	}
	r.index.SetState(slot, kvblock.FeedExact)
	r.chooser.AddRank(slot, &again, 0)
	a.renew()
	r.chooser.Changed()
	held := a.held
	a.held = nil
	for _, call := range held {
		a.service.arrive(call)
	}
	r.plan()
}

// stop takes a replica away: one that still starts, or the least loaded one, which finishes its requests.
func (a *autoscaler) stop() {
	a.pass()
	if e := slices.Index(a.phases, phaseStarting); e >= 0 {
		a.phases[e] = phaseOff
		return
	}
	r, best := a.routers[0], -1
	for e, p := range a.phases {
		if p == phaseReady && (best < 0 || r.inFlight(e) <= r.inFlight(best)) {
			best = e
		}
	}
	if best < 0 {
		return
	}
	a.phases[best] = phaseDraining
	a.renew()
	a.drained(best)
}

// drained ends a replica that is stopped and has no requests.
func (a *autoscaler) drained(e int) {
	if a.phases[e] != phaseDraining || a.routers[0].inFlight(e) > 0 {
		return
	}
	a.pass()
	a.phases[e] = phaseOff
	a.forget(e)
}

// forget has the router forget a replica.
func (a *autoscaler) forget(e int) {
	r, slot := a.routers[0], replica.Slot(e)
	r.index.RemoveRank(slot)
	r.chooser.RemoveRank(slot)
	r.book.RemoveRank(slot)
}

// scaled is the result at the end of a run.
func (a *autoscaler) scaled() *Scaled {
	a.pass()
	for _, done := range a.sim.done {
		if math.IsNaN(done) {
			a.result.Lost++
		}
	}
	a.result.GPUSeconds = a.result.ReplicaSeconds * float64(a.profile.GPUs)
	a.result.Mean = a.result.ReplicaSeconds / max(a.sim.now, time.Microsecond.Seconds())
	result := a.result
	return &result
}
