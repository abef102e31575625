package replay

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Question is what a Plan answers.
type Question struct {
	// Share of the answers that must meet Options.Goal, above 0.5 and below 1 or equal to it.
	Share float64
	// Rate is the load in requests per second that replicas are counted for; 0 counts none.
	Rate float64
	// Most is the largest number of replicas to try for Rate; 0 takes four times Options.Replicas.
	Most int
	// Step is the ratio of two neighboring loads less one: how finely the highest load is searched for. 0 takes DefaultStep.
	Step float64
	// Curve is the number of loads that every arrangement is played at, next to those of the search; 0 plays none.
	Curve int
}

// DefaultStep has loads that are 5 % apart.
const DefaultStep = 0.05

const (
	// mostDivisions bounds the fixed divisions that are played of many replicas.
	mostDivisions = 15
	// hopeless is the share of requests that miss the goal at which a run of the search ends: its point has no figures.
	hopeless = 0.5
	// lowestLoad and highestLoad bound the search, as shares of what the pooled cache completes.
	lowestLoad, highestLoad = 0.02, 2.5
)

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
	// Unseen lists what the plan does not cover.
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

// arrangements are one pool, both, and the fixed divisions of n replicas: all of them, or evenly spaced ones of many.
func arrangements(n int) []Roles {
	list := []Roles{{}, {Both: n}}
	count := min(n-1, mostDivisions)
	for i := range count {
		prefill := 1 + i
		if n-1 > count {
			prefill = int(math.Round(float64(n*(i+1)) / float64(count+1)))
		}
		list = append(list, Roles{Prefill: prefill, Decode: n - prefill})
	}
	return list
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

// cell is one arrangement under one load. Loads are powers of the step, by their exponent; rate is set for those of the question.
type cell struct {
	replicas int
	roles    Roles
	step     int
	rate     float64
}

// played is a cell's outcome.
type played struct {
	once  sync.Once
	point Point
	err   error
}

// planner plays cells, each once. It is safe for concurrent use.
type planner struct {
	*player
	question       Question
	report         *Report // that all runs are for; it stays empty
	capacity, base float64
	room           chan struct{} // bounds the runs at once
	// failed ends the search after the first error.
	failed atomic.Bool

	mu    sync.Mutex
	cells map[cell]*played // guarded by mu
}

// play returns the point of a cell.
func (p *planner) play(c cell) (Point, error) {
	p.mu.Lock()
	one := p.cells[c]
	if one == nil {
		one = &played{}
		p.cells[c] = one
	}
	p.mu.Unlock()
	one.once.Do(func() { one.point, one.err = p.runs(c) })
	return one.point, one.err
}

// rate is the load of a cell.
func (p *planner) rate(c cell) float64 {
	if c.rate > 0 {
		return c.rate
	}
	return p.capacity * math.Pow(1+p.question.Step, float64(c.step))
}

// runs plays a cell with each seed.
func (p *planner) runs(c cell) (Point, error) {
	o := &p.options
	rate, bound := p.rate(c), hopeless
	if c.rate > 0 {
		bound = 1 - p.question.Share // whether the goal is kept is all that is asked
	}
	results := make([]Numbers, o.Seeds)
	errs := make([]error, o.Seeds)
	p.all.Add(int64(o.Seeds))
	var wait sync.WaitGroup
	for seed := range o.Seeds {
		wait.Go(func() {
			p.room <- struct{}{}
			defer func() { <-p.room }()
			if p.failed.Load() {
				return
			}
			results[seed], errs[seed] = p.run(&job{
				report: p.report, setup: ruleset{Policy: decision.PredictedTTFT, Roles: c.roles, Split: SplitByPrice}, replicas: c.replicas,
				speed: rate / p.base, seed: uint64(seed + 1), missed: bound,
			})
			if errs[seed] != nil {
				p.failed.Store(true)
			}
		})
	}
	wait.Wait()
	var n Numbers
	for _, r := range results {
		n.add(r, 1/float64(o.Seeds))
	}
	point := Point{RPS: rate, Abandoned: n.Abandoned, cause: "tpot"}
	if n.late > n.slow {
		point.cause = "ttft"
	}
	if !n.Abandoned {
		point.Good, point.GoodRPS, point.Split = n.Steady, rate*n.Steady, n.Split
		point.TTFTP50, point.TTFTP99, point.TPOTP50, point.TPOTP99 = n.P50, n.P99, n.TPOTP50, n.TPOTP99
	}
	return point, errors.Join(errs...)
}

// keeps reports whether the goal is kept in a cell.
func (p *planner) keeps(c cell) (bool, error) {
	point, err := p.play(c)
	return !point.Abandoned && point.Good >= p.question.Share, err
}

// search looks for the highest load that each arrangement keeps the goal at.
func (p *planner) search(kinds []Roles) ([]Arrangement, error) {
	step := math.Log1p(p.question.Step)
	low, high := int(math.Floor(math.Log(lowestLoad)/step)), int(math.Ceil(math.Log(highestLoad)/step))
	at := int(math.Round(math.Log(0.6) / step))
	edges := make([]int, len(kinds))
	err := p.each(len(kinds), func(i int) error {
		var err error
		edges[i], err = edge(low, high, at, func(k int) (bool, error) {
			return p.keeps(cell{replicas: p.options.Replicas, roles: kinds[i], step: k})
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := p.curve(kinds, edges, low, high); err != nil {
		return nil, err
	}
	list := make([]Arrangement, len(kinds))
	for i, roles := range kinds {
		list[i] = p.arrangement(roles, edges[i], low, high)
	}
	return list, nil
}

// curve plays every arrangement at the same loads, from below the lowest edge to above the highest one.
func (p *planner) curve(kinds []Roles, edges []int, low, high int) error {
	n := p.question.Curve
	if n == 0 {
		return nil
	}
	margin := math.Log(1.3) / math.Log1p(p.question.Step)
	from, to := float64(max(low, slices.Min(edges)))-margin, float64(slices.Max(edges))+margin
	var steps []int
	for i := range n {
		steps = append(steps, min(high, max(low, int(math.Round(from+(to-from)*float64(i)/float64(max(1, n-1)))))))
	}
	steps = slices.Compact(steps)
	return p.each(len(kinds)*len(steps), func(i int) error {
		_, err := p.play(cell{replicas: p.options.Replicas, roles: kinds[i/len(steps)], step: steps[i%len(steps)]})
		return err
	})
}

// arrangement collects the cells of one.
func (p *planner) arrangement(roles Roles, edge, low, high int) Arrangement {
	a := Arrangement{Name: roles.String()}
	p.mu.Lock()
	defer p.mu.Unlock()
	for c, one := range p.cells {
		if c.roles == roles && c.rate == 0 && c.replicas == p.options.Replicas {
			a.Points = append(a.Points, one.point)
		}
	}
	slices.SortFunc(a.Points, func(a, b Point) int { return int(math.Copysign(1, a.RPS-b.RPS)) })
	c := cell{replicas: p.options.Replicas, roles: roles, step: edge}
	if edge >= low {
		a.Keeps = p.rate(c)
	}
	if c.step++; edge < high {
		a.Breaks, a.Cause = p.rate(c), p.cells[c].point.cause
	}
	return a
}

// each runs do for 0 to n-1 at once. The bound on runs is that of the planner.
func (p *planner) each(n int, do func(int) error) error {
	errs := make([]error, n)
	var wait sync.WaitGroup
	for i := range n {
		wait.Go(func() { errs[i] = do(i) })
	}
	wait.Wait()
	return errors.Join(errs...)
}

// edge returns the largest number from low to high that holds is true of, low-1 when there is none. It must be true of all smaller ones than
// one that it is true of. The search begins at the number at, with growing strides.
func edge(low, high, at int, holds func(int) (bool, error)) (int, error) {
	good, bad, stride := low-1, high+1, 1
	for k := min(max(at, low), high); good+1 < bad; {
		yes, err := holds(k)
		if err != nil {
			return 0, err
		}
		if yes {
			good = k
		} else {
			bad = k
		}
		stride *= 2
		switch {
		case bad > high:
			k = min(high, good+stride)
		case good < low:
			k = max(low, bad-stride)
		default:
			k = (good + bad) / 2
		}
	}
	return good, nil
}

// needs counts the replicas that one pool, both and fixed divisions take for the question's load.
func (p *planner) needs(kinds []Roles, known []Arrangement) ([]Need, error) {
	n := p.options.Replicas
	guess := func(keeps float64) int {
		if keeps == 0 {
			return n
		}
		return int(math.Ceil(float64(n) * p.question.Rate / keeps))
	}
	list := make([]Need, 2, 3)
	starts := []int{guess(known[0].Keeps), guess(known[1].Keeps)}
	divide := []func(int) []Roles{
		func(int) []Roles { return []Roles{{}} },
		func(n int) []Roles { return []Roles{{Both: n}} },
	}
	list[0].Kind, list[1].Kind = known[0].Name, "both"
	if len(kinds) > 2 && p.question.Most > 1 {
		best := 2
		for i := 3; i < len(known); i++ {
			if known[i].Keeps > known[best].Keeps {
				best = i
			}
		}
		ratio := float64(kinds[best].Prefill) / float64(n)
		list = append(list, Need{Kind: kindFixed})
		starts = append(starts, guess(known[best].Keeps))
		divide = append(divide, func(n int) []Roles { return near(n, ratio) })
	}
	err := p.each(len(list), func(i int) error {
		var mu sync.Mutex
		kept := map[int]Need{}
		short, err := edge(1, p.question.Most, starts[i]-1, func(n int) (bool, error) {
			of, err := p.suffices(n, divide[i](n))
			mu.Lock()
			kept[n] = of
			mu.Unlock()
			return of.Replicas == 0, err
		})
		if enough := kept[short+1]; enough.Replicas > 0 {
			enough.Kind = list[i].Kind
			list[i] = enough
		}
		return err
	})
	return list, err
}

// near are the fixed divisions of n replicas of which about a share prefills.
func near(n int, share float64) []Roles {
	var list []Roles
	middle := int(math.Round(share * float64(n)))
	for prefill := max(1, middle-1); prefill <= min(n-1, middle+1); prefill++ {
		list = append(list, Roles{Prefill: prefill, Decode: n - prefill})
	}
	return list
}

// suffices plays the question's load under divisions of n replicas; the Need has no replicas when none of them keeps the goal.
func (p *planner) suffices(n int, divisions []Roles) (Need, error) {
	points := make([]Point, len(divisions))
	err := p.each(len(divisions), func(i int) error {
		var err error
		points[i], err = p.play(cell{replicas: n, roles: divisions[i], rate: p.question.Rate})
		return err
	})
	var best Need
	for i, point := range points {
		if !point.Abandoned && point.Good >= p.question.Share && (best.Replicas == 0 || point.Good > best.Good) {
			best = Need{Replicas: n, Roles: divisions[i].String(), Good: point.Good}
		}
	}
	return best, err
}

// unseen lists what the plan does not cover.
func (p *planner) unseen(kinds int) []string {
	o := &p.options
	list := []string{
		fmt.Sprintf("loads between two that are %.3g %% apart; that a higher load or fewer replicas do better is taken to be impossible", 100*p.question.Step),
		"divisions that mix fixed roles with replicas that do both",
		"failures, restarts and spare replicas for them, leases and handshakes of transfers",
		"other engines, GPUs per replica and sizes of cache than the profile's, and tiers of cache beyond its memory",
		"loads that change within a run, except as the trace does",
	}
	if o.Replicas-1 > kinds-2 {
		list = append(list, fmt.Sprintf("%d of the %d fixed divisions", o.Replicas-1-(kinds-2), o.Replicas-1))
	}
	if p.question.Rate > 0 {
		list = append(list, fmt.Sprintf("fixed divisions of other numbers of replicas than those next to the share of the best one of %d", o.Replicas))
	}
	if o.Seeds == 1 {
		list = append(list, "the spread between runs: there was one seed")
	}
	return list
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
