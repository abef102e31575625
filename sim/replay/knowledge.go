package replay

import (
	"math"
	"math/rand/v2"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

// estimateSpread is the standard deviation of the logarithm of a length estimated from a text.
const estimateSpread = 0.15

// knowledge is what the router knows of a prompt when it chooses.
type knowledge struct {
	tokens    int
	estimated bool
	hashes    []blockhash.Hash
	// before is the turn with the prompt that is all that is known, and known its tokens; -1 when all is known, or nothing.
	before, known int
}

// knowledge is drawn by call alone, so that every policy gets the same.
func (w *workload) knowledge(call int, o *Options) knowledge {
	c := &w.Calls[call]
	hashes := w.hashes[call]
	k := knowledge{tokens: c.In, hashes: hashes[:min(len(hashes), c.In/w.block)], before: -1}
	if o.Texts == 0 && o.Beginnings == 0 {
		return k
	}
	dice := rand.New(rand.NewPCG(uint64(call), 5))
	text, beginning := dice.Float64() < o.Texts, dice.Float64() < o.Beginnings
	known := 0
	switch {
	case text:
	case beginning && w.before[call] >= 0:
		k.before = int(w.before[call])
		known = w.shared(k.before, call)
		k.known = known
	default:
		return k
	}
	guess := float64(c.In-known) * math.Exp(estimateSpread*dice.NormFloat64())
	k.tokens, k.estimated = known+max(1, int(guess)), true
	k.hashes = k.hashes[:min(len(k.hashes), known/w.block)]
	return k
}

// shared is how many tokens of an earlier prompt begin a later one.
func (w *workload) shared(earlier, later int) int {
	a, b := &w.Calls[earlier], &w.Calls[later]
	n := 0
	for n < min(len(a.IDs), len(b.IDs)) && a.IDs[n] == b.IDs[n] {
		n++
	}
	return min(n*w.Chunk, a.In, b.In-1)
}

// turnsBefore gives each call the one before it in its session, -1 for none.
func turnsBefore(t *Trace) []int32 {
	before := make([]int32, len(t.Calls))
	last := map[int]int32{}
	for i := range t.Calls {
		s := t.Calls[i].Session
		before[i] = -1
		if b, ok := last[s]; ok {
			before[i] = b
		}
		last[s] = int32(i)
	}
	return before
}
