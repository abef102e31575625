package replay

import (
	"math"
	"math/rand/v2"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// The rules of other routers, with the defaults of the named version. Each knows the engines' caches as they are, without delay, except
// SGLang, which knows its own requests alone; all send every request at once.
const (
	// LLMD is the optimized baseline of llm-d's router since August 2026: prefix-cache-affinity-filter, then token-load-scorer. Its
	// prefill rate is measured as llm-d's calibration does, on an idle engine of the run.
	LLMD decision.Policy = "llm-d-1.0"
	// Dynamo is the cost of Dynamo's KV router.
	Dynamo decision.Policy = "dynamo-1.6"
	// AIBrix is AIBrix' strategy prefix-cache.
	AIBrix decision.Policy = "aibrix-0.8"
	// SGLang is cache_aware, the default of sglang-router. vllm-router's policy of that name has the same rule and defaults.
	SGLang decision.Policy = "sglang-router-0.3"
)

// Rivals lists the rules of other routers.
func Rivals() []decision.Policy { return []decision.Policy{LLMD, Dynamo, AIBrix, SGLang} }

// rule chooses among engines.
type rule interface {
	// cost of each engine for a request; the lowest is chosen, one of its equals by dice. +Inf takes an engine out.
	costs(dst []float64, in *rivalRequest, engines []rivalEngine) []float64
}

// rememberer is a rule that keeps what it has sent.
type rememberer interface {
	sent(in *rivalRequest, engine int)
}

// rivalRequest is a request in blocks.
type rivalRequest struct {
	keys          []blockhash.Hash
	adapter       string
	tokens, block int
	blocks        int   // whole ones of the prompt
	held          []int // per engine, of them
	active        []int // per engine, the first of them that a request in flight uses
}

// uncached is the number of tokens that engine e would compute.
func (r *rivalRequest) uncached(e int) int { return r.tokens - r.held[e]*r.block }

// rivalEngine is what a router counts of an engine: requests in flight, uncached tokens of those without a first token, and blocks in
// use with the number of their users.
type rivalEngine struct {
	requests, prefill int
	active            map[blockhash.Hash]int
}

// rival sends each call to the engine that a rule finds cheapest.
type rival struct {
	sim     *sim
	rule    rule
	engines []rivalEngine
	calls   []rivalCall
	whole   bool // no first token is seen
	dice    *rand.Rand
	costs   []float64
}

type rivalCall struct{ prefill, blocks int }

func newRival(s *sim, j *job) *rival {
	r := &rival{
		sim: s, engines: make([]rivalEngine, len(s.engines)), calls: make([]rivalCall, len(s.trace.Calls)),
		whole: j.options.Answers.Whole, dice: rand.New(rand.NewPCG(j.seed, 17)),
	}
	for i := range r.engines {
		r.engines[i].active = map[blockhash.Hash]int{}
	}
	switch j.setup.Policy {
	case LLMD:
		cfg := s.engines[0].machine.Config()
		chunk := cfg.MaxBatchedTokens
		r.rule = stickyUntilSaturated{rate: float64(chunk) * cfg.Timing.Speed / (cfg.Timing.Base.Seconds() + cfg.Timing.Prefill(chunk, 0))}
	case Dynamo:
		r.rule = backlogLessOverlap{}
	case LLMDAdapters:
		r.rule = loraAffinity{s}
	case SGLang:
		r.rule = newRoutedOrLeast(len(s.engines))
	default:
		r.rule = matchUnlessCrowded{}
	}
	return r
}

func (r *rival) arrive(call int) {
	if wait := r.sim.delays.tokenizing(r.sim.trace.Calls[call].In); wait > 0 {
		r.sim.after(wait, func() { r.submit(call) })
		return
	}
	r.submit(call)
}

func (r *rival) submit(call int) {
	r.sim.look()
	c := &r.sim.trace.Calls[call]
	in := &rivalRequest{adapter: c.Adapter, tokens: c.In, block: r.sim.trace.block, held: make([]int, len(r.engines)), active: make([]int, len(r.engines))}
	keys := r.sim.trace.hashes[call]
	keys = keys[:min(len(keys), c.In/in.block)]
	in.keys, in.blocks = keys, len(keys)
	for e := range r.engines {
		in.held[e] = r.sim.engines[e].machine.Pool().Match(keys)
		for in.active[e] < len(keys) && r.engines[e].active[keys[in.active[e]]] > 0 {
			in.active[e]++
		}
	}
	r.costs = r.rule.costs(r.costs[:0], in, r.engines)
	best := lowestOf(r.costs, r.dice)
	if rule, ok := r.rule.(rememberer); ok {
		rule.sent(in, best)
	}
	e := &r.engines[best]
	r.calls[call] = rivalCall{prefill: in.uncached(best), blocks: len(keys)}
	e.requests++
	e.prefill += r.calls[call].prefill
	for _, k := range keys {
		e.active[k]++
	}
	r.sim.send(call, best)
}

// lowestOf is the place of the lowest cost, one of its equals by dice.
func lowestOf(costs []float64, dice *rand.Rand) int {
	best, ties := 0, 0
	for i, c := range costs {
		switch {
		case c < costs[best]:
			best, ties = i, 1
		case c == costs[best]:
			if ties++; dice.IntN(ties) == 0 {
				best = i
			}
		}
	}
	return best
}

func (r *rival) firstToken(a *attempt) {
	if !r.whole {
		r.prefilled(a)
	}
}

func (r *rival) prefilled(a *attempt) {
	c := &r.calls[a.call]
	r.engines[a.engine].prefill -= c.prefill
	c.prefill = 0
}

func (r *rival) progress(*attempt, int) {}

func (r *rival) finished(a *attempt) {
	r.prefilled(a)
	e := &r.engines[a.engine]
	e.requests--
	for _, k := range r.sim.trace.hashes[a.call][:r.calls[a.call].blocks] {
		if e.active[k]--; e.active[k] == 0 {
			delete(e.active, k)
		}
	}
}

func (r *rival) changed(int, []kvEvent) {} // the caches are read

// stickyUntilSaturated is LLMD: engines that hold four fifths of the prompt's blocks, as long as the least loaded of them would not
// keep a request waiting for 18 s longer than the least loaded other one; of these the one with the fewest tokens to compute.
type stickyUntilSaturated struct{ rate float64 } // of prefill, tokens per second

const (
	stickyShare   = 0.8
	stickyPenalty = 18.0
)

func (s stickyUntilSaturated) costs(dst []float64, in *rivalRequest, engines []rivalEngine) []float64 {
	sticky := func(e int) bool { return in.blocks > 0 && float64(in.held[e]) >= stickyShare*float64(in.blocks) }
	least := map[bool]float64{true: math.Inf(1), false: math.Inf(1)}
	for e := range engines {
		least[sticky(e)] = min(least[sticky(e)], float64(engines[e].prefill)/s.rate)
	}
	stay := !math.IsInf(least[true], 1) && least[true]-least[false] <= stickyPenalty
	for e := range engines {
		if stay && !sticky(e) {
			dst = append(dst, math.Inf(1))
			continue
		}
		dst = append(dst, float64(engines[e].prefill+in.uncached(e)))
	}
	return dst
}

// backlogLessOverlap is Dynamo, in blocks: the prefill in flight and this prompt, less the blocks that the engine holds, and the blocks
// in use once this request is there.
type backlogLessOverlap struct{}

func (backlogLessOverlap) costs(dst []float64, in *rivalRequest, engines []rivalEngine) []float64 {
	for e := range engines {
		prefill := float64(engines[e].prefill+in.tokens)/float64(in.block) - float64(in.held[e])
		dst = append(dst, max(0, prefill)+float64(len(engines[e].active)+in.blocks-in.active[e]))
	}
	return dst
}

// matchUnlessCrowded is AIBrix: the engine with the longest match whose requests are at most one standard deviation above the mean; by
// requests alone when engines differ by more than eight, or none matches.
type matchUnlessCrowded struct{}

const crowded = 8

func (matchUnlessCrowded) costs(dst []float64, in *rivalRequest, engines []rivalEngine) []float64 {
	var sum, squares float64
	low, high := math.MaxInt, 0
	for e := range engines {
		n := engines[e].requests
		low, high = min(low, n), max(high, n)
		sum, squares = sum+float64(n), squares+float64(n*n)
	}
	mean := sum / float64(len(engines))
	limit := mean + math.Sqrt(max(0, squares/float64(len(engines))-mean*mean))
	for e := range engines {
		n := float64(engines[e].requests)
		if matches := in.held[e] > 0 && high-low <= crowded && n <= limit; matches {
			dst = append(dst, n/(float64(high)+1)-float64(in.held[e])-1) // before all that do not match
		} else {
			dst = append(dst, n)
		}
	}
	return dst
}

// routedOrLeast is SGLang: the engine to which the longest beginning of the prompt was sent before, where that is more than three
// tenths of it; else, and while engines differ by more than 64 requests and by half, the engine with the fewest requests, the first of
// equals. What was sent is never forgotten: the router keeps 67 million characters.
type routedOrLeast struct{ trees []map[blockhash.Hash]struct{} }

const (
	routedShare = 0.3
	unevenBy    = 64
	unevenTimes = 1.5
)

func newRoutedOrLeast(engines int) *routedOrLeast {
	r := &routedOrLeast{trees: make([]map[blockhash.Hash]struct{}, engines)}
	for e := range r.trees {
		r.trees[e] = map[blockhash.Hash]struct{}{}
	}
	return r
}

func (r *routedOrLeast) sent(in *rivalRequest, engine int) {
	for _, k := range in.keys {
		r.trees[engine][k] = struct{}{}
	}
}

// routed is how many of the prompt's first blocks were sent to engine e.
func (r *routedOrLeast) routed(in *rivalRequest, e int) int {
	for i, k := range in.keys {
		if _, ok := r.trees[e][k]; !ok {
			return i
		}
	}
	return len(in.keys)
}

func (r *routedOrLeast) costs(dst []float64, in *rivalRequest, engines []rivalEngine) []float64 {
	low, high := math.MaxInt, 0
	for e := range engines {
		low, high = min(low, engines[e].requests), max(high, engines[e].requests)
	}
	uneven := high-low > unevenBy && float64(high) > unevenTimes*float64(low)
	longest := 0
	for e := range engines {
		longest = max(longest, r.routed(in, e))
	}
	known := !uneven && float64(longest) > routedShare*float64(in.blocks)
	for e := range engines {
		if known {
			dst = append(dst, float64(-r.routed(in, e)))
		} else {
			dst = append(dst, float64(engines[e].requests)+float64(e)/float64(len(engines)))
		}
	}
	return dst
}
