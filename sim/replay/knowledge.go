package replay

import (
	"math"
	"math/rand/v2"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

// Frontends says what each of several routers knows of a prompt.
type Frontends string

const (
	// FrontendsAll have the ids of every prompt, whichever router had the turns before.
	FrontendsAll Frontends = "all"
	// FrontendsSeen know the turns that came to them, as routers do. A prompt whose turn before the router had is chosen by that
	// turn's ids, without a wait; any other one waits for its ids.
	FrontendsSeen Frontends = "seen"
	// FrontendsOlder are as FrontendsSeen, but a later turn is always chosen without a wait: by any older turn that the router had, or by
	// the beginning that it shares with other sessions.
	FrontendsOlder Frontends = "older"
)

// FrontendKinds lists them.
func FrontendKinds() []Frontends { return []Frontends{FrontendsAll, FrontendsSeen, FrontendsOlder} }

// estimateSpread is the standard deviation of the logarithm of a length estimated from a text.
const estimateSpread = 0.15

// knowledge is what the router knows of a prompt when it chooses.
type knowledge struct {
	tokens    int
	estimated bool
	hashes    []blockhash.Hash
	// before is the turn with the prompt that is all that is known, and known its tokens; -1 when all is known, or nothing.
	before, known int
	// early is set when the choice does not wait for ids.
	early bool
}

// knowledge is drawn by call alone, so that every policy gets the same.
func (w *workload) knowledge(call int, o *Options) knowledge {
	c := &w.Calls[call]
	hashes := w.hashes[call]
	k := knowledge{tokens: c.In, hashes: hashes[:min(len(hashes), c.In/w.block)], before: -1}
	if o.Texts == 0 && o.Beginnings == 0 {
		return k
	}
	dice := estimates(call)
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
	w.estimate(&k, c, known, dice)
	return k
}

// estimates are the dice of what is guessed about a call.
func estimates(call int) *rand.Rand { return rand.New(rand.NewPCG(uint64(call), 5)) }

// estimate makes k the knowledge of the first tokens and of the text behind them.
func (w *workload) estimate(k *knowledge, c *Call, known int, dice *rand.Rand) {
	guess := float64(c.In-known) * math.Exp(estimateSpread*dice.NormFloat64())
	k.tokens, k.estimated = known+max(1, int(guess)), true
	k.hashes = k.hashes[:min(len(k.hashes), known/w.block)]
}

// knowledge is what this router knows of a call's prompt, by the turns that came to it.
func (r *router) knowledge(call int) knowledge {
	w, o := r.sim.trace, &r.job.options
	k := w.knowledge(call, o)
	r.cameTo[call] = r.number
	b := w.before[call]
	switch {
	case b < 0:
	case o.Frontends == FrontendsOlder:
		for b >= 0 && r.cameTo[b] != r.number {
			b = w.before[b]
		}
		if b < 0 {
			b = r.alike(call)
		}
	case o.Frontends != FrontendsSeen || r.cameTo[b] != r.number:
		b = -1
	}
	if b < 0 {
		return k
	}
	k.before, k.known, k.early = int(b), w.shared(int(b), call), true
	w.estimate(&k, &w.Calls[call], k.known, estimates(call))
	return k
}

// alike is the last call before this one that came to the router and begins as it does; -1 for none.
func (r *router) alike(call int) int32 {
	w := r.sim.trace
	for b := call - 1; b >= 0; b-- {
		if r.cameTo[b] == r.number && w.shared(b, call) > 0 {
			return int32(b)
		}
	}
	return -1
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
