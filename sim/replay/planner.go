package replay

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

const (
	// mostDivisions bounds the fixed divisions that are played of many replicas.
	mostDivisions = 15
	// hopeless is the share of requests that miss the goal at which a run of the search ends: its point has no figures.
	hopeless = 0.5
	// lowestLoad and highestLoad bound the search, as shares of the pooled cache's capacity.
	lowestLoad, highestLoad = 0.02, 2.5
)

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

// cell is one arrangement under one load. Loads are powers of the step, by their exponent; rate is set for the question's load.
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

// each runs do for 0 to n-1 at once. The planner bounds the runs at once.
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

// unseen lists the limits of the plan.
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
