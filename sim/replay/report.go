package replay

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Options say what to play: requests before routers and engines, under rules, in runs.
type Options struct {
	Traffic
	Engines
	Routing
	Rules
	Runs
}

// Traffic is the requests and how fast they come.
type Traffic struct {
	Trace *Trace
	// AtLeast has a trace of fewer requests played again and again, each pass with prefixes of its own,
	// until it has as many; 0 plays it once. Closed loops are always played once.
	AtLeast int
	// Load is the arrival rate as a share of the pooled-cache oracle's saturation rate; Rates, when there
	// are any, are the arrival rates in requests per second instead.
	Load  float64
	Rates []float64
	// Memory, when there are any, are loads of a closed loop by its sessions at once instead: by how many times the fleet's memory
	// their contexts take.
	Memory []float64
	// Answers are what the router sees of answers.
	Answers Answers
}

// Engines are the modelled replicas and the ways to them.
type Engines struct {
	Replicas int
	Profile  Profile
	// Block is the block size in tokens; the trace's chunks must be a multiple.
	Block int
	// Speeds are the replicas' speeds as multiples of the profile's, repeated over all of them; none is all ones.
	// Turns are changes of them during a run.
	Speeds []float64
	Turns  []Turn
	// Lies are what is wrong with the first replicas, in their order; none is nothing.
	Lies []Lie
	// Delays are the times between client, router and engines.
	Delays Delays
}

// Routing is the routers and what they know.
type Routing struct {
	// Routers stand in front of the replicas, and each call goes to one of them at random; 0 is 1. Fleet says how
	// they decide when there are several; empty is FleetAlone. RTT is the round trip between two of them in seconds.
	Routers int
	Fleet   Fleet
	RTT     float64
	// Frontends says what the routers know of a prompt; empty is FrontendsAll.
	Frontends Frontends
	// Beginnings is the share of later turns of a conversation of which the router knows the turn
	// before, Texts the share of requests of which it knows the text alone; the length is estimated then.
	Beginnings, Texts float64
	// PaceBias multiplies the learned prefill times, EventLoss is the share of KV events lost.
	PaceBias, EventLoss float64
}

// Rules are the policies and their parameters.
type Rules struct {
	Policies []decision.Policy
	// Objective and Weights are those of predicted-ttft and of all policies; empty takes the defaults.
	Objective decision.Objective
	Weights   map[string]float64
}

// Runs are how often and how long the trace is played.
type Runs struct {
	// Seeds is the number of runs per policy; their numbers are averaged.
	Seeds int
	// Goal is the promise that a good answer keeps; the zero value takes DefaultGoal.
	Goal Goal
	// NoSaturation leaves the saturation runs out.
	NoSaturation bool
	// Patience gives a run up when its mean is sure to exceed that many times the oracle's, because
	// the fleet cannot keep up with the load; 0 plays everything to its end.
	Patience float64
	// Workers bounds the runs at once; 0 takes the number of cores.
	Workers int
	// Progress, when set, is called with how many of all runs are done.
	Progress func(done, all int)
}

// FewestRequests is a good AtLeast. A policy that sends cheap requests first leaves the expensive ones for
// the end, and in a short run the end is what is measured.
const FewestRequests = 6000

// enough is the trace played as often as AtLeast takes. Sessions that wait for their own answers are
// left alone: their passes would run at the same time.
func (o *Options) enough() *Trace {
	if o.Trace.Closed {
		return o.Trace
	}
	return o.Trace.repeat((o.AtLeast + len(o.Trace.Calls) - 1) / len(o.Trace.Calls))
}

// overload is the arrival rate of saturation runs as a share of the oracle's own.
const overload = 1.15

// Report is the outcome of Play.
type Report struct {
	Trace    string  `json:"trace"`
	Calls    int     `json:"requests"`
	Replicas int     `json:"replicas"`
	Routers  int     `json:"routers,omitempty"`
	Fleet    Fleet   `json:"fleet,omitempty"`
	RTT      float64 `json:"rtt_s,omitempty"`
	// Frontends is what the routers know of a prompt; empty: all of it.
	Frontends Frontends `json:"frontends,omitempty"`
	Load      float64   `json:"load"`
	Profile   string    `json:"profile"`
	Seeds     int       `json:"seeds"`
	// Goal is what Goodput counts.
	Goal Goal `json:"goal"`
	// RPS is the arrival rate that Load came to.
	RPS float64 `json:"rps"`
	// AtOnce is the number of sessions at once where the load is given by Memory; Load and RPS are 0 then.
	AtOnce   int                              `json:"programs_at_once,omitempty"`
	Memory   float64                          `json:"memory,omitempty"`
	Oracle   PolicyReport                     `json:"oracle"`
	Policies map[decision.Policy]PolicyReport `json:"policies"`
	order    []decision.Policy
}

// PolicyReport is how one policy did.
type PolicyReport struct {
	Numbers
	// SaturationRPS is the rate of requests that a full fleet completes.
	SaturationRPS float64 `json:"saturation_rps,omitempty"`
	// VsOracle is the mean time to the first token over the oracle's; SaturationVsOracle the
	// saturation rate over the oracle's.
	VsOracle           float64 `json:"vs_oracle"`
	SaturationVsOracle float64 `json:"saturation_vs_oracle,omitempty"`
}

func (o *Options) check() error {
	var errs []error
	if o.Trace == nil || len(o.Trace.Calls) == 0 {
		errs = append(errs, errors.New("no trace"))
	} else if o.Block < 1 || o.Trace.Chunk%o.Block != 0 {
		errs = append(errs, fmt.Errorf("block size %d does not divide the trace's chunks of %d tokens", o.Block, o.Trace.Chunk))
	}
	if o.Replicas < 1 || o.Replicas > 4096 {
		errs = append(errs, fmt.Errorf("%d replicas: 1 to 4096 are possible", o.Replicas))
	}
	if o.Routers < 0 || o.Routers > 64 {
		errs = append(errs, fmt.Errorf("%d routers: 1 to 64 are possible", o.Routers))
	}
	if o.Fleet != "" && !slices.Contains(Fleets(), o.Fleet) {
		errs = append(errs, fmt.Errorf("unknown fleet %q; known are %v", o.Fleet, Fleets()))
	}
	if o.Frontends != "" && !slices.Contains(FrontendKinds(), o.Frontends) {
		errs = append(errs, fmt.Errorf("unknown kind of frontends %q; known are %v", o.Frontends, FrontendKinds()))
	}
	if o.RTT < 0 || o.RTT > 1 {
		errs = append(errs, fmt.Errorf("round trip %v: must be from 0 to 1 second", o.RTT))
	}
	if o.Load <= 0 || o.Load > 10 {
		errs = append(errs, fmt.Errorf("load %v: above 0, and 1 is the oracle's saturation", o.Load))
	}
	if o.Seeds < 1 {
		errs = append(errs, fmt.Errorf("%d seeds: at least one is needed", o.Seeds))
	}
	for _, speed := range o.Speeds {
		if speed <= 0 {
			errs = append(errs, fmt.Errorf("speed %v: must be above 0", speed))
		}
	}
	for name, share := range map[string]float64{"event loss": o.EventLoss, "known beginnings": o.Beginnings, "known texts": o.Texts} {
		if share < 0 || share > 1 {
			errs = append(errs, fmt.Errorf("share of %s %v: must be from 0 to 1", name, share))
		}
	}
	for _, p := range o.Policies {
		if !p.Known() {
			errs = append(errs, fmt.Errorf("unknown policy %q; known are %v", p, decision.Policies()))
		}
	}
	return errors.Join(errs...)
}

// Play plays a trace under each policy and the oracle.
func Play(o Options) (*Report, error) {
	reports, err := PlayLoads(o, o.Load)
	if err != nil {
		return nil, err
	}
	return reports[0], nil
}

// PlayLoads is Play at several loads instead of Options.Load, with one report for each. How fast the
// fleet is when full is measured once.
func PlayLoads(o Options, loads ...float64) ([]*Report, error) {
	for _, rate := range o.Rates {
		if rate <= 0 {
			return nil, fmt.Errorf("%v requests per second: must be above 0", rate)
		}
	}
	for _, share := range o.Memory {
		if share <= 0 || o.Trace == nil || !o.Trace.Closed {
			return nil, fmt.Errorf("%v times the memory: must be above 0, for a trace of closed loops", share)
		}
	}
	if len(o.Rates) > 0 {
		loads = loads[:0]
	}
	for _, o.Load = range loads {
		if err := o.check(); err != nil {
			return nil, err
		}
	}
	if o.Trace.longest() > o.Profile.CacheTokens {
		return nil, fmt.Errorf("a request of %d tokens does not fit the replica's cache of %d", o.Trace.longest(), o.Profile.CacheTokens)
	}
	if o.Routers > 1 && o.Fleet == "" {
		o.Fleet = FleetAlone
	}
	if o.PaceBias == 0 {
		o.PaceBias = 1
	}
	if o.Goal == (Goal{}) {
		o.Goal = DefaultGoal()
	}
	o.Trace = o.enough()
	w := newWorkload(o.Trace, o.Block)
	p := player{options: o, work: w}
	if len(o.Memory) > 0 {
		return p.atOnce()
	}
	p.all.Store(int64(2 + (1+len(o.Policies))*o.Seeds*(len(loads)+len(o.Rates))))
	if !o.NoSaturation {
		p.all.Add(int64(len(o.Policies)))
	}
	// How fast the pooled cache is at most: first roughly with everything at once, then at an
	// arrival rate just above that.
	base := w.rate()
	rough, err := p.run(&job{speed: 1e6, seed: 1})
	if err != nil {
		return nil, err
	}
	full, err := p.run(&job{speed: overload * rough.rate / base, seed: 1})
	if err != nil {
		return nil, err
	}
	for _, rate := range o.Rates {
		loads = append(loads, rate/full.rate)
	}
	return p.loads(loads, full.rate, base)
}

// loads plays the oracle at each load, then all policies. capacity is the oracle's saturation rate
// and base the trace's own rate.
func (p *player) loads(loads []float64, capacity, base float64) ([]*Report, error) {
	o := &p.options
	reports := make([]*Report, len(loads))
	var jobs []*job
	for i, load := range loads {
		reports[i] = p.report()
		reports[i].Load, reports[i].RPS = load, load*capacity
		for seed := range o.Seeds {
			jobs = append(jobs, &job{report: reports[i], speed: load * capacity / base, seed: uint64(seed + 1)})
		}
	}
	return p.finish(reports, jobs, capacity, base)
}

// report is an empty one for a load of the run.
func (p *player) report() *Report {
	o := &p.options
	r := &Report{
		Trace: o.Trace.Name, Calls: len(p.work.Calls), Replicas: o.Replicas, Profile: o.Profile.Name, Seeds: o.Seeds, Goal: o.Goal,
		Policies: map[decision.Policy]PolicyReport{}, order: o.Policies,
	}
	if o.Frontends != FrontendsAll {
		r.Frontends = o.Frontends
	}
	if o.Routers > 1 {
		r.Routers, r.Fleet, r.RTT = o.Routers, o.Fleet, o.RTT
	}
	return r
}

// speed is the factor on the trace's own arrival times; base is the trace's own rate.
func (r *Report) speed(base float64) float64 {
	if r.AtOnce > 0 {
		return 1
	}
	return r.RPS / base
}

// atOnce plays the oracle and all policies under loads by sessions at once.
func (p *player) atOnce() ([]*Report, error) {
	o := &p.options
	o.NoSaturation = true
	p.all.Store(int64((1 + len(o.Policies)) * o.Seeds * len(o.Memory)))
	var reports []*Report
	var jobs []*job
	for _, share := range o.Memory {
		r := p.report()
		r.Memory, r.AtOnce = share, o.fitting(share)
		reports = append(reports, r)
		for seed := range o.Seeds {
			jobs = append(jobs, &job{report: r, speed: 1, atOnce: r.AtOnce, seed: uint64(seed + 1)})
		}
	}
	return p.finish(reports, jobs, 0, 1)
}

// finish plays the oracle's jobs and then those of the policies under the same loads.
func (p *player) finish(reports []*Report, jobs []*job, capacity, base float64) ([]*Report, error) {
	o := &p.options
	results, err := p.runAll(jobs)
	if err != nil {
		return nil, err
	}
	for i, j := range jobs {
		j.report.Oracle.add(results[i], 1/float64(o.Seeds))
	}
	jobs = jobs[:0]
	for _, policy := range o.Policies {
		if !o.NoSaturation {
			jobs = append(jobs, &job{policy: policy, speed: overload * capacity / base})
		}
		for _, r := range reports {
			for seed := range o.Seeds {
				jobs = append(jobs, &job{report: r, policy: policy, speed: r.speed(base), atOnce: r.AtOnce, seed: uint64(seed + 1), most: o.Patience * r.Oracle.Mean})
			}
		}
	}
	if results, err = p.runAll(jobs); err != nil {
		return nil, err
	}
	for _, r := range reports {
		r.fill(jobs, results, capacity)
	}
	return reports, nil
}

// fill averages the runs of each policy. A job without a report measured saturation.
func (r *Report) fill(jobs []*job, results []Numbers, capacity float64) {
	for i, j := range jobs {
		p := r.Policies[j.policy]
		switch j.report {
		case nil:
			p.SaturationRPS = results[i].rate
			p.SaturationVsOracle = results[i].rate / capacity
		case r:
			p.add(results[i], 1/float64(r.Seeds))
		}
		r.Policies[j.policy] = p
	}
	r.Oracle.SaturationRPS, r.Oracle.SaturationVsOracle, r.Oracle.VsOracle = capacity, 1, 1
	for name, p := range r.Policies {
		p.VsOracle = p.Mean / r.Oracle.Mean
		if p.Abandoned {
			p.Numbers = Numbers{Mean: p.Mean, Abandoned: true}
		}
		r.Policies[name] = p
	}
}

// player runs jobs and counts them.
type player struct {
	options Options
	work    *workload
	done    atomic.Int64
	all     atomic.Int64
}

func (p *player) run(j *job) (Numbers, error) {
	j.work, j.options = p.work, p.options
	n, err := j.play()
	if done := p.done.Add(1); p.options.Progress != nil {
		p.options.Progress(int(done), int(p.all.Load()))
	}
	return n, err
}

func (p *player) runAll(jobs []*job) ([]Numbers, error) {
	workers := p.options.Workers
	if workers < 1 {
		workers = runtime.NumCPU()
	}
	results := make([]Numbers, len(jobs))
	errs := make([]error, len(jobs))
	var next atomic.Int64
	var wait sync.WaitGroup
	for range min(workers, len(jobs)) {
		wait.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(jobs); i = int(next.Add(1)) - 1 {
				results[i], errs[i] = p.run(jobs[i])
			}
		})
	}
	wait.Wait()
	return results, errors.Join(errs...)
}

func (t *Trace) longest() int {
	n := 0
	for i := range t.Calls {
		n = max(n, t.Calls[i].In+t.Calls[i].Out)
	}
	return n
}
