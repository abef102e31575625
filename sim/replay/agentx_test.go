package replay

import (
	"math"
	"slices"
	"testing"
)

// shape are figures of a closed loop's trace.
type shape struct {
	// Spawning is the share of programs with subagents.
	Spawning float64
	// Turns is the median of turns of the programs' own sessions, In and Out are medians of a call's tokens.
	Turns, In, Out float64
	// Hits is the share of prompt tokens that a cache without a bound would hold, Quick the share of gaps below a second.
	Hits, Quick float64
}

// shapeOf reads the trace.
func shapeOf(t *Trace) shape {
	var ins, outs, turns []float64
	var in, hit, gaps, quick float64
	own, spawning := map[int]float64{}, map[int]bool{}
	held := map[uint64]bool{}
	callers := t.callers()
	for i := range t.Calls {
		c := &t.Calls[i]
		ins, outs, in = append(ins, float64(c.In)), append(outs, float64(c.Out)), in+float64(c.In)
		for n, id := range c.IDs {
			if n*t.Chunk < c.In && held[id] {
				hit += float64(min(t.Chunk, c.In-n*t.Chunk))
			}
		}
		for _, id := range c.IDs {
			held[id] = true
		}
		switch {
		case callers[i] >= 0:
			spawning[t.program(i)] = true
		default:
			own[t.program(i)]++
		}
		if c.Prev >= 0 && len(c.Joins) == 0 {
			gaps++
			if c.At < 1 {
				quick++
			}
		}
	}
	for _, n := range own {
		turns = append(turns, n)
	}
	median := func(list []float64) float64 { slices.Sort(list); return quantile(list, 0.5) }
	return shape{
		Spawning: float64(len(spawning)) / math.Max(1, float64(len(own))), Turns: median(turns), In: median(ins), Out: median(outs),
		Hits: hit / in, Quick: quick / math.Max(1, gaps),
	}
}

// The generator keeps the shape of the recorded sessions: medians within a tenth, shares within a few points.
func TestAgentXHasTheShapeOfRecordedSessions(t *testing.T) {
	trace := generated(t, "agentx", 20_000)
	s := shapeOf(trace)
	t.Logf("%+v, %.0f tokens per program", s, trace.resident())
	for name, v := range map[string][3]float64{
		"median turns": {s.Turns, 39, 48}, "median prompt": {s.In, 128e3, 156e3}, "median answer": {s.Out, 400, 490},
		"hits": {s.Hits, 0.96, 0.99}, "share with subagents": {s.Spawning, 0.38, 0.50}, "quick gaps": {s.Quick, 0.83, 0.89},
	} {
		if v[0] < v[1] || v[0] > v[2] {
			t.Errorf("%s: %.3f, want %g to %g", name, v[0], v[1], v[2])
		}
	}
	callers, forks := trace.callers(), 0
	for i := range trace.Calls {
		c := &trace.Calls[i]
		if c.Prev >= i || slices.ContainsFunc(c.Joins, func(j int) bool { return j >= i || trace.program(j) != trace.program(i) }) {
			t.Fatalf("call %d waits for one that comes after it, or for one of another program", i)
		}
		if by := callers[i]; by >= 0 && common(trace.Calls[by].IDs, c.IDs) > xSystem/trace.Chunk+1 {
			forks++
		}
	}
	if forks == 0 {
		t.Error("no subagent continues the context of its caller")
	}
}

// An agent's next call waits for its subagents, and a program ends with the last call of its tree.
func TestCallsWaitForSubagents(t *testing.T) {
	trace := generated(t, "agentx", 600)
	p := Profiles()[0]
	s := newSim(newWorkload(trace, 512), newPooled(&p, Hardware{}, 8, 512), 1, 1)
	s.pooled = true
	s.router = &oracle{sim: s, left: make([]float64, 8), work: make([]float64, len(trace.Calls))}
	s.limit(2)
	s.run(0)
	joined := 0
	for i := range trace.Calls {
		c := &trace.Calls[i]
		for _, j := range append(slices.Clone(c.Joins), c.Prev) {
			if j >= 0 && s.arrived[i] < s.done[j]+c.At-1e-9 && (j == c.Prev || s.arrived[i] < s.done[j]) {
				t.Fatalf("call %d arrives at %.3f, before call %d has ended at %.3f", i, s.arrived[i], j, s.done[j])
			}
		}
		joined += len(c.Joins)
	}
	if joined == 0 {
		t.Fatal("no call waits for subagents")
	}
	begun, ended := map[int]float64{}, map[int]float64{}
	for i := range trace.Calls {
		n := trace.program(i)
		ended[n] = max(ended[n], s.done[i])
		if trace.Calls[i].Prev < 0 {
			begun[n] = s.arrived[i]
		}
	}
	for n, at := range begun {
		running := 0
		for o := range begun {
			if o != n && begun[o] <= at && ended[o] > at {
				running++
			}
		}
		if running > 1 {
			t.Errorf("program %d starts while %d others run, want at most one", n, running)
		}
	}
	if q := s.programs(); q.Makespan <= 0 || q.PerHour <= 0 || q.P99 < q.P50 {
		t.Errorf("figures of programs: %+v", q)
	}
}
