package replay

import (
	"math"
	"slices"
)

// The agents of steps are the agents of lab/agents, in whole chunks.
const (
	stepsCalls, stepsGrowth, stepsAnswer = 20, 4 * chunkTokens, 100
	stepsGap                             = 0.25
)

// steps: agents of 20 calls, each with 2,048 tokens more than the one before, a quarter of a second apart. Nothing is shared between them.
func (g *generator) steps(n int) {
	g.trace.Closed = true
	for session := 0; len(g.trace.Calls) < n; session++ {
		var ids []uint64
		at, prev := float64(session), -1
		for range stepsCalls {
			ids = g.fresh(slices.Clone(ids), stepsGrowth)
			g.trace.Calls = append(g.trace.Calls, Call{At: at, In: len(ids) * chunkTokens, Out: stepsAnswer, IDs: ids, Session: session, Prev: prev})
			at, prev = stepsGap, len(g.trace.Calls)-1
		}
	}
}

// builds: agents that edit for a second and then wait for a build. Four gaps in ten have a tail without a mean: 8 seconds at least, 15 minutes at
// most. Turns are many and short.
func (g *generator) builds(n int) {
	g.trace.Closed = true
	system := g.fresh(nil, 6000)
	for session := 0; len(g.trace.Calls) < n; session++ {
		ids := g.fresh(slices.Clone(system), g.clamped(12_000, 0.9, 1000, 60_000))
		at, prev := 5*float64(session), -1
		for range g.clamped(30, 0.8, 4, 150) {
			in, out := len(ids)*chunkTokens, g.clamped(200, 0.7, 20, 2000)
			if in > 180_000 {
				break
			}
			next := g.fresh(slices.Clone(ids), out+g.clamped(1200, 1.3, 50, 20_000))
			g.trace.Calls = append(g.trace.Calls, Call{At: at, In: in, Out: out, IDs: next[:len(ids)+out/chunkTokens], Session: session, Prev: prev})
			prev, ids = len(g.trace.Calls)-1, next
			if at = g.logNormal(0.6, 0.7); g.dice.Float64() < 0.4 {
				at = min(900, 8*math.Pow(1-g.dice.Float64(), -1/1.1))
			}
		}
	}
}

// reviews: agents that read for some turns and fork late. In the last third of its turns each starts once or twice two to six subagents, all with its whole
// context, and waits for them; a turn adds much.
func (g *generator) reviews(n int) {
	g.trace.Closed, g.trace.Programs = true, []int{}
	x := &agentX{generator: g, system: g.fresh(nil, 10_000), session: -1}
	for ; len(g.trace.Calls) < n; x.program++ {
		x.review()
	}
}

func (x *agentX) review() {
	x.session++
	session := x.session
	turns := 9 + x.dice.IntN(12)
	groups := make([]int, turns)
	for range 1 + x.dice.IntN(2) {
		groups[turns*2/3+x.dice.IntN(turns/3)] = 2 + x.dice.IntN(5)
	}
	ids := x.fresh(slices.Clone(x.system), x.clamped(8000, 0.7, 1000, 40_000))
	prev, at, joins := -1, 6*float64(x.program), []int(nil)
	for turn := range turns {
		prev, ids = x.turn(ids, x.answer(), session, prev, at, joins)
		at, joins = x.logNormal(2, 0.8), nil
		for range groups[turn] {
			joins = append(joins, x.reviewer(prev, ids))
		}
		ids = x.fresh(ids, x.clamped(4500, 0.9, 200, 40_000)+500*len(joins))
	}
}

// reviewer is a subagent that continues a context after a call; it returns its last call.
func (x *agentX) reviewer(after int, context []uint64) int {
	x.session++
	ids := x.fresh(slices.Clone(context), x.clamped(1000, 0.5, 200, 5000))
	prev, at := after, 0.05+0.3*x.dice.Float64()
	for range 3 + x.dice.IntN(8) {
		prev, ids = x.turn(ids, x.clamped(250, 0.6, 20, 2000), x.session, prev, at, nil)
		at = x.logNormal(1, 0.9)
		ids = x.fresh(ids, x.clamped(2500, 0.8, 100, 15_000))
	}
	return prev
}
