package replay

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
)

// Question is the question that a Plan answers.
type Question struct {
	// Share of the answers that must meet Options.Goal, above 0.5 and below 1 or equal to it.
	Share float64
	// Rate is the load in requests per second that replicas are counted for; 0 counts none.
	Rate float64
	// Most is the largest number of replicas to try for Rate; 0 takes four times Options.Replicas.
	Most int
	// Step is the ratio of two neighboring loads less one: how finely the highest load is searched for. 0 takes DefaultStep.
	Step float64
	// Curve is the number of loads that every arrangement is played at, next to the loads of the search; 0 plays none.
	Curve int
}

// DefaultStep has loads that are 5 % apart.
const DefaultStep = 0.05

func (q *Question) complete(o *Options) error {
	if q.Step == 0 {
		q.Step = DefaultStep
	}
	if q.Most == 0 {
		q.Most = min(4*o.Replicas, 4096)
	}
	var errs []error
	if !(q.Share > 0.5 && q.Share <= 1) {
		errs = append(errs, fmt.Errorf("share %v: must be above 0.5 and at most 1", q.Share))
	}
	if !(q.Rate >= 0) || math.IsInf(q.Rate, 0) {
		errs = append(errs, fmt.Errorf("rate %v: must be above 0", q.Rate))
	}
	if !(q.Step >= 0.005 && q.Step <= 1) {
		errs = append(errs, fmt.Errorf("step %v: must be from 0.005 to 1", q.Step))
	}
	if q.Most < 1 || q.Most > 4096 {
		errs = append(errs, fmt.Errorf("at most %d replicas: 1 to 4096 are possible", q.Most))
	}
	if q.Curve < 0 || q.Curve > 50 {
		errs = append(errs, fmt.Errorf("%d loads of the curve: 0 to 50 are possible", q.Curve))
	}
	if o.Routers > 1 {
		errs = append(errs, fmt.Errorf("%d routers: a plan is made with one", o.Routers))
	}
	if len(o.Memory)+len(o.Programs) > 0 {
		errs = append(errs, errors.New("a plan searches for arrival rates: loads by programs at once are not possible"))
	}
	return errors.Join(errs...)
}

// Plan says how replicas are best arranged for a load.
type Plan struct {
	Trace    string `json:"trace"`
	Calls    int    `json:"requests"`
	Replicas int    `json:"replicas"`
	// GPUs is the number that one replica takes.
	GPUs    int    `json:"gpus_per_replica"`
	Profile string `json:"profile"`
	Seeds   int    `json:"seeds"`
	Goal    Goal   `json:"goal"`
	// Share of the answers must meet the goal.
	Share float64 `json:"share"`
	// PooledRPS is the arrival rate that replicas with one pooled cache complete, without regard to the goal.
	PooledRPS    float64       `json:"pooled_cache_rps"`
	Arrangements []Arrangement `json:"arrangements"`
	// Best is the arrangement that keeps the goal up to the highest load.
	Best string `json:"best,omitempty"`
	// Rate is the load that Needs are for.
	Rate  float64 `json:"rps,omitempty"`
	Needs []Need  `json:"needs,omitempty"`
	// Runs is the number of runs that were played.
	Runs int `json:"runs"`
	// Unseen lists the limits of the plan.
	Unseen []string `json:"not_looked_at"`
}

// Arrangement is how well one division of the replicas does.
type Arrangement struct {
	// Name is none for one pool, both, or a fixed division such as 2p6d.
	Name string `json:"roles"`
	// Keeps is the highest load that was played at which the goal is kept, Breaks the lowest above it at which it is not, in requests
	// per second. Keeps is 0 when the goal was kept at no load, and Breaks when it was kept at all.
	Keeps  float64 `json:"keeps_rps"`
	Breaks float64 `json:"breaks_rps"`
	// Cause is the target that most misses at Breaks are of: ttft or tpot.
	Cause  string  `json:"cause,omitempty"`
	Points []Point `json:"points"`
}

// Point is one load of an arrangement.
type Point struct {
	RPS float64 `json:"rps"`
	// Good is the share of answers that meet the goal after the first tenth.
	Good float64 `json:"good"`
	// GoodRPS is the rate of them.
	GoodRPS float64 `json:"good_rps"`
	TTFTP50 float64 `json:"ttft_p50_s"`
	TTFTP99 float64 `json:"ttft_p99_s"`
	TPOTP50 float64 `json:"tpot_p50_s"`
	TPOTP99 float64 `json:"tpot_p99_s"`
	Split   float64 `json:"split_share,omitempty"`
	// Abandoned says that the run ended early, since more than half of the requests had missed the goal. Good is at most one half then, and
	// all figures are 0.
	Abandoned bool `json:"abandoned,omitempty"`
	cause     string
}

// Need is the smallest number of replicas that keeps the goal at the load.
type Need struct {
	// Kind is none, both, or fixed for the best fixed division.
	Kind string `json:"kind"`
	// Replicas is 0 when the largest number that was tried does not keep the goal.
	Replicas int `json:"replicas"`
	// Roles is the division of them, Good the share of answers that meet the goal.
	Roles string  `json:"roles,omitempty"`
	Good  float64 `json:"good,omitempty"`
}

// kindFixed is the Kind of fixed divisions.
const kindFixed = "fixed"

// MakePlan plays the trace under one pool, under both and under every fixed division of the replicas, at the loads of a search for the highest one
// at which the goal is kept, and with several numbers of replicas at the load of the question. Policies, roles and rules of splits of
// the options are not used.
func MakePlan(o Options, q Question) (*Plan, error) {
	o.Load, o.Policies, o.Roles, o.Splits, o.NoSaturation, o.Rates = 1, nil, nil, nil, true, nil
	if err := errors.Join(o.check(), q.complete(&o)); err != nil {
		return nil, err
	}
	player, err := newPlayer(o)
	if err != nil {
		return nil, err
	}
	o = player.options
	p := planner{player: player, question: q, report: player.report(), cells: map[cell]*played{}}
	workers := o.Workers
	if workers < 1 {
		workers = runtime.NumCPU()
	}
	p.room = make(chan struct{}, workers)
	player.all.Store(2)
	if p.capacity, p.base, err = player.capacity(); err != nil {
		return nil, err
	}
	plan := &Plan{
		Trace: o.Trace.Name, Calls: len(player.work.Calls), Replicas: o.Replicas, GPUs: o.Profile.GPUs, Profile: o.Profile.Name, Seeds: o.Seeds, Goal: o.Goal,
		Share: q.Share, PooledRPS: p.capacity, Rate: q.Rate,
	}
	kinds := arrangements(o.Replicas)
	if plan.Arrangements, err = p.search(kinds); err != nil {
		return nil, err
	}
	best := plan.best()
	if best >= 0 {
		plan.Best = plan.Arrangements[best].Name
	}
	if q.Rate > 0 {
		if plan.Needs, err = p.needs(kinds, plan.Arrangements); err != nil {
			return nil, err
		}
	}
	plan.Runs = int(player.done.Load())
	plan.Unseen = p.unseen(len(kinds))
	return plan, nil
}

// best is the arrangement that keeps the goal up to the highest load; -1 when none keeps it. Of equals the simplest.
func (p *Plan) best() int {
	best := -1
	for i, a := range p.Arrangements {
		if a.Keeps > 0 && (best < 0 || a.Keeps > p.Arrangements[best].Keeps) {
			best = i
		}
	}
	return best
}

// loads are the rates at which any arrangement was played to its end, in ascending order.
func (p *Plan) loads() []float64 {
	seen := map[float64]bool{}
	for i := range p.Arrangements {
		for _, point := range p.Arrangements[i].Points {
			seen[point.RPS] = seen[point.RPS] || !point.Abandoned
		}
	}
	maps.DeleteFunc(seen, func(_ float64, played bool) bool { return !played })
	return slices.Sorted(maps.Keys(seen))
}

// at is the point of a load; nil when the arrangement was not played there.
func (a *Arrangement) at(rps float64) *Point {
	i := slices.IndexFunc(a.Points, func(p Point) bool { return p.RPS == rps })
	if i < 0 {
		return nil
	}
	return &a.Points[i]
}
