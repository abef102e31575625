package replay

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

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
	// AtOnce is the number of programs at once where the load is given so, and Memory how many times the fleet's memory their contexts
	// take; Load and RPS are 0 then.
	AtOnce int          `json:"programs_at_once,omitempty"`
	Memory float64      `json:"memory,omitempty"`
	Oracle PolicyReport `json:"oracle"`
	// Policies has a report for each ruleset, by its name.
	Policies map[decision.Policy]PolicyReport `json:"policies"`
	order    []decision.Policy
}

// PolicyReport is how one policy did.
type PolicyReport struct {
	Numbers
	// SaturationRPS is the rate of requests that a full fleet completes.
	SaturationRPS float64 `json:"saturation_rps,omitempty"`
	// GoodRPS is the rate of answers that meet the Goal once the fleet is full; 0 where the load is no arrival rate.
	GoodRPS float64 `json:"good_rps,omitempty"`
	// VsOracle is the mean time to the first token over the oracle's; SaturationVsOracle the
	// saturation rate over the oracle's.
	VsOracle           float64 `json:"vs_oracle"`
	SaturationVsOracle float64 `json:"saturation_vs_oracle,omitempty"`
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
	for _, n := range o.Programs {
		if n < 1 || o.Trace == nil || !o.Trace.Closed {
			return nil, fmt.Errorf("%d programs at once: must be at least 1, for a trace of closed loops", n)
		}
	}
	if len(o.Rates) > 0 {
		loads, o.Load = loads[:0], 1 // the rates say the load; the rest is checked all the same
		if err := o.check(); err != nil {
			return nil, err
		}
	}
	for _, o.Load = range loads {
		if err := o.check(); err != nil {
			return nil, err
		}
	}
	p, err := newPlayer(o)
	if err != nil {
		return nil, err
	}
	if len(o.Memory)+len(o.Programs) > 0 {
		return p.atOnce()
	}
	p.all.Store(int64(2 + (1+len(o.setups()))*o.Seeds*(len(loads)+len(o.Rates))))
	if !o.NoSaturation {
		p.all.Add(int64(len(o.setups())))
	}
	capacity, base, err := p.capacity()
	if err != nil {
		return nil, err
	}
	for _, rate := range o.Rates {
		loads = append(loads, rate/capacity)
	}
	return p.loads(loads, capacity, base)
}

// newPlayer completes the options and makes the trace ready.
func newPlayer(o Options) (*player, error) {
	if least := o.Hardware.leastCache(&o.Profile, o.Replicas); o.Trace.longest() > least {
		return nil, fmt.Errorf("a request of %d tokens does not fit a replica's cache of %d", o.Trace.longest(), least)
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
	if o.Chats > 0 {
		if len(o.Memory)+len(o.Programs) == 0 {
			return nil, fmt.Errorf("%v chats per second: there must be a load by programs at once", o.Chats)
		}
		var err error
		if o.Trace, err = o.Trace.withChats(o.Chats, 1); err != nil {
			return nil, err
		}
	}
	o.Trace = o.enough()
	p := &player{options: o, work: newWorkload(o.Trace, o.Block)}
	p.work.wave = o.Wave
	return p, nil
}

// capacity measures the arrival rate that the pooled cache completes at most, first roughly with everything at once, then at an
// arrival rate just above that. base is the trace's own rate.
func (p *player) capacity() (capacity, base float64, err error) {
	base = p.work.rate()
	rough, err := p.run(&job{speed: 1e6, seed: 1})
	if err != nil {
		return 0, 0, err
	}
	full, err := p.run(&job{speed: overload * rough.rate / base, seed: 1})
	return full.rate, base, err
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
		Policies: map[decision.Policy]PolicyReport{},
	}
	for _, setup := range o.setups() {
		r.order = append(r.order, setup.name())
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

// atOnce plays the oracle and all policies under loads by programs at once.
func (p *player) atOnce() ([]*Report, error) {
	o := &p.options
	o.NoSaturation = true
	var reports []*Report
	var jobs []*job
	for _, share := range o.Memory {
		r := p.report()
		r.Memory, r.AtOnce = share, o.fitting(share)
		reports = append(reports, r)
	}
	for _, n := range o.Programs {
		r := p.report()
		r.Memory, r.AtOnce = float64(n)/o.fits(), n
		reports = append(reports, r)
	}
	p.all.Store(int64((1 + len(o.Policies)) * o.Seeds * len(reports)))
	for _, r := range reports {
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
	for _, setup := range o.setups() {
		if !o.NoSaturation && setup.Scale == (ScaleRule{}) {
			jobs = append(jobs, &job{setup: setup, speed: overload * capacity / base})
		}
		for _, r := range reports {
			for seed := range o.Seeds {
				most := o.Patience * r.Oracle.Mean
				if setup.Scale != (ScaleRule{}) {
					most = 0 // requests may wait for a start
				}
				jobs = append(jobs, &job{report: r, setup: setup, speed: r.speed(base), atOnce: r.AtOnce, seed: uint64(seed + 1), most: most})
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
		name := j.setup.name()
		p := r.Policies[name]
		switch j.report {
		case nil:
			p.SaturationRPS = results[i].rate
			p.SaturationVsOracle = results[i].rate / capacity
		case r:
			p.add(results[i], 1/float64(r.Seeds))
		}
		r.Policies[name] = p
	}
	r.Oracle.SaturationRPS, r.Oracle.SaturationVsOracle, r.Oracle.VsOracle = capacity, 1, 1
	for name, p := range r.Policies {
		p.VsOracle = p.Mean / r.Oracle.Mean
		if p.Abandoned {
			p.Numbers = Numbers{Mean: p.Mean, Abandoned: true}
		}
		p.GoodRPS = r.RPS * p.Steady
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
	if j.replicas > 0 {
		j.options.Replicas = j.replicas
	}
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
