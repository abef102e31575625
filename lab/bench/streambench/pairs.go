package streambench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

// pairs are the turns of each subject, in the order of the rounds.
type pairs map[string][]round

// paired runs load against each subject in each round, in an order of chance: a router that has just
// had a turn, or has had its turn after the same neighbour each time, is not compared fairly.
func (b *bench) paired(ctx context.Context, name string, rounds int, load func(context.Context, *process) ([]time.Duration, int, error)) (pairs, error) {
	all := pairs{}
	order := slices.Clone(b.subjects)
	var last *process
	for i := range rounds + 1 {
		rand.Shuffle(len(order), func(a, b int) { order[a], order[b] = order[b], order[a] })
		if order[0] == last {
			slices.Reverse(order)
		}
		last = order[len(order)-1]
		for _, p := range order {
			one, err := b.turn(ctx, p, load)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			if i > 0 { // the first round opens connections and fills caches
				all[p.name] = append(all[p.name], one)
			}
		}
	}
	if name == "" { // only counted
		return all, nil
	}
	return all, b.profile(ctx, name, load)
}

func cpuPerUnit(o round) float64 { return float64(o.cpu) / 1e3 / float64(o.units) }
func perSecond(o round) float64  { return float64(o.units) / o.wall.Seconds() }

func allocsPerUnit(o round) float64 { return float64(o.mallocs) / float64(o.units) }

func (a pairs) median(name string, value func(round) float64) float64 {
	var values []float64
	for _, one := range a[name] {
		values = append(values, value(one))
	}
	return measure.Median(values)
}

// against compares the CPU time of each round with the time of the router without tracing.
func (a pairs) against(name string, compare func(got, none float64) float64) []float64 {
	var values []float64
	for i, one := range a[name] {
		values = append(values, compare(cpuPerUnit(one), cpuPerUnit(a[tracesNone][i])))
	}
	return values
}

func more(got, none float64) float64 { return got - none }

func (a pairs) beyond(name string) float64 { return mean(a.against(name, more)) }
func (a pairs) times(name string) float64  { return mean(a.against(name, ratio)) }

// mean leaves out the quarter of the values at either end: turns that something else disturbed. The
// median would leave out garbage collections too, which not every turn has.
func mean(values []float64) float64 {
	slices.Sort(values)
	cut := len(values) / 4
	sum := 0.0
	for _, v := range values[cut : len(values)-cut] {
		sum += v
	}
	return sum / float64(len(values)-2*cut)
}

// spread is between the quartiles of the differences.
func (a pairs) spread(name string) float64 {
	values := a.against(name, more)
	slices.Sort(values)
	return values[len(values)*3/4] - values[len(values)/4]
}
