package replay

import (
	"slices"
)

// The shape of AgentX: recorded sessions of coding agents. The medians are those of the recorded sessions; docs/agents.md has them next
// to the generator's.
const (
	// xSystem are the instructions and tools of all agents in tokens, xTask those of all subagents.
	xSystem, xTask = 16_000, 9_000
	// xTurns is the median number of turns of an agent's own session, xSpread the deviation of its logarithm.
	xTurns, xSpread = 43, 0.9
	// xSpawning is the share of agents that have subagents, xForking the share of groups of subagents that continue the agent's context.
	xSpawning, xForking = 0.44, 0.25
	// xQuick is the share of gaps below a second.
	xQuick = 0.86
	// xLongest is the context at which an agent continues with a summary.
	xLongest = 400_000
)

// agentX makes one agent's program.
type agentX struct {
	*generator
	system, task []uint64
	program      int
	session      int // the last one
}

// agentx: sessions of coding agents. A turn follows the one before after a tool's time, mostly less than a second. Some turns start
// subagents with contexts of their own, or forks of the agent's context, and the next one waits for all of these.
func (g *generator) agentx(n int) {
	g.trace.Closed, g.trace.Programs = true, []int{}
	x := &agentX{generator: g, system: g.fresh(nil, xSystem), task: g.fresh(nil, xTask), session: -1}
	for ; len(g.trace.Calls) < n; x.program++ {
		x.agent()
	}
}

// gap is the time in seconds that a tool takes.
func (g *generator) gap() float64 {
	if g.dice.Float64() < xQuick {
		return min(0.999, g.logNormal(0.2, 0.8))
	}
	return max(1, min(600, g.logNormal(6, 1.3)))
}

// turn appends a call with the prompt ids and returns its number and the ids of the context that it leaves.
func (x *agentX) turn(ids []uint64, out, session, prev int, at float64, joins []int) (call int, context []uint64) {
	context = x.fresh(slices.Clone(ids), out)
	x.trace.Calls = append(x.trace.Calls, Call{At: at, In: len(ids) * x.trace.Chunk, Out: out, IDs: context[:len(ids)+out/x.trace.Chunk], Session: session, Prev: prev, Joins: joins})
	x.trace.Programs = append(x.trace.Programs, x.program)
	return len(x.trace.Calls) - 1, context
}

func (x *agentX) answer() int { return x.clamped(444, 0.9, 20, 8000) }

func (x *agentX) agent() {
	x.session++
	session := x.session
	turns := x.clamped(xTurns, xSpread, 5, 250)
	groups := x.groups(turns)
	ids := x.fresh(slices.Clone(x.system), x.clamped(50_000, 0.8, 4000, 200_000))
	prev, at, joins := -1, 4*float64(x.program), []int(nil)
	for turn := range turns {
		prev, ids = x.turn(ids, x.answer(), session, prev, at, joins)
		at, joins = x.gap(), nil
		for range groups[turn] {
			joins = append(joins, x.subagents(prev, ids)...)
		}
		ids = x.fresh(ids, x.clamped(1500, 1.2, 30, 40_000)+700*len(joins))
		if len(ids)*x.trace.Chunk > xLongest {
			ids = x.fresh(slices.Clone(x.system), x.clamped(60_000, 0.5, 5000, 150_000))
		}
	}
}

// groups draws how many groups of subagents each turn starts.
func (x *agentX) groups(turns int) []int {
	list := make([]int, turns)
	if x.dice.Float64() < xSpawning {
		for range 1 + x.dice.IntN(3) {
			list[x.dice.IntN(turns-1)] = 1
		}
	}
	return list
}

// subagents starts one group after a call that left a context, and returns the last call of each.
func (x *agentX) subagents(after int, context []uint64) (last []int) {
	from := x.task
	if x.dice.Float64() < xForking {
		from = context
	}
	for range 1 + x.dice.IntN(4) {
		x.session++
		ids := x.fresh(slices.Clone(from), x.clamped(2000, 0.8, 200, 20_000))
		prev, at := after, 0.05+0.2*x.dice.Float64()
		for range x.clamped(10, 0.6, 2, 40) {
			prev, ids = x.turn(ids, x.answer(), x.session, prev, at, nil)
			at = x.gap()
			ids = x.fresh(ids, x.clamped(1500, 1.2, 30, 40_000))
		}
		last = append(last, prev)
	}
	return last
}
