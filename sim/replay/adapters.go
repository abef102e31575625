package replay

import (
	"math"
	"slices"
	"strconv"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

// adaptersInTrace is the number of LoRA adapters of the trace adapters.
const adaptersInTrace = 64

// adapters: chats of one to ten turns, each with one of 64 LoRA adapters, which falls with its rank, as one over it. The chats of an adapter share
// its system prompt.
func (g *generator) adapters(n int) {
	g.trace.Chunk = 128
	systems := make([][]uint64, adaptersInTrace)
	weights := make([]float64, adaptersInTrace)
	var sum float64
	for i := range systems {
		systems[i] = g.fresh(nil, 1024)
		sum += 1 / float64(i+1)
		weights[i] = sum
	}
	var at float64
	for session := 0; len(g.trace.Calls) < n+n/2+100; session++ {
		at += g.dice.ExpFloat64() * 0.3
		of, _ := slices.BinarySearch(weights, g.dice.Float64()*sum)
		ids, t := g.fresh(slices.Clone(systems[of]), g.clamped(600, 0.9, 30, 8000)), at
		for range 1 + min(9, int(g.dice.ExpFloat64()*1.5)) {
			in, out := len(ids)*g.trace.Chunk-g.dice.IntN(g.trace.Chunk), g.clamped(200, 0.7, 10, 1500)
			g.trace.Calls = append(g.trace.Calls, Call{At: t, In: in, Out: out, IDs: slices.Clone(ids), Session: session, Prev: -1, Adapter: "adapter-" + strconv.Itoa(of)})
			ids = g.fresh(ids, out+g.clamped(200, 0.9, 10, 2000))
			t += 10 + g.logNormal(30, 0.8)
		}
	}
}

// adapterNames are the adapters of the trace, in the order of their first calls.
func (t *Trace) adapterNames() []string {
	var names []string
	seen := map[string]bool{"": true}
	for i := range t.Calls {
		if name := t.Calls[i].Adapter; !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names
}

// LLMDAdapters are the scorers that llm-d's router and the Gateway API Inference Extension blend for adapters, with their weights: prefix cache 3, queue 2,
// KV memory 2, lora-affinity 1.
const LLMDAdapters decision.Policy = "llm-d-lora"

// loraAffinity is LLMDAdapters: 1 where the engine has requests of the adapter, 0.8 where it could run one more adapter, 0.6 where requests of it
// wait, 0 elsewhere; with the share of the prompt that is held, the emptiness of the queue and the free memory. Its engines are read at the moment
// of the choice, as if their metrics had no age.
type loraAffinity struct{ sim *sim }

func (l loraAffinity) costs(dst []float64, in *rivalRequest, _ []rivalEngine) []float64 {
	low, high := math.MaxInt, 0
	for _, e := range l.sim.engines {
		low, high = min(low, len(e.machine.Waiting())), max(high, len(e.machine.Waiting()))
	}
	for i, e := range l.sim.engines {
		score, waiting := 0.0, e.machine.Waiting()
		if in.blocks > 0 {
			score += 3 * float64(in.held[i]) / float64(in.blocks)
		}
		if high == low {
			score += 2
		} else {
			score += 2 * float64(high-len(waiting)) / float64(high-low)
		}
		pool := e.machine.Pool()
		score += 2 * float64(pool.Free()) / float64(pool.Size())
		score += affinity(in.adapter, e.machine.Config().Adapters.Slots, enginemodel.AdaptersOf(e.machine.Running()), enginemodel.AdaptersOf(waiting))
		dst = append(dst, -score)
	}
	return dst
}

// affinity is the score of the adapter on an engine with so many slots.
func affinity(adapter string, slots int, running, waiting []string) float64 {
	both := len(running)
	for _, name := range waiting {
		if !slices.Contains(running, name) {
			both++
		}
	}
	switch {
	case slices.Contains(running, adapter):
		return 1
	case both < slots:
		return 0.8
	case slices.Contains(waiting, adapter):
		return 0.6
	}
	return 0
}
