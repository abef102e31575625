package replay

import (
	"math"

	"github.com/kvpilot/kvpilot/server/blockhash"
	"github.com/kvpilot/kvpilot/server/chooser"
	"github.com/kvpilot/kvpilot/server/decision"
)

// newWorkload makes a trace ready for engines with blocks of block tokens.
func newWorkload(t *Trace, block int) *workload {
	w := &workload{Trace: t, block: block, hashes: make([][]blockhash.Hash, len(t.Calls))}
	seed := blockhash.Namespace{}.Seed()
	var tokens []uint32
	for i := range t.Calls {
		c := &t.Calls[i]
		n := min((c.In+c.Out)/block, len(c.IDs)*(t.Chunk/block))
		list := make([]blockhash.Hash, n)
		var parent blockhash.Hash
		for j := range list {
			tokens = w.appendBlock(tokens[:0], i, j)
			parent = blockhash.Next(parent, blockhash.Local(tokens, seed))
			list[j] = parent
		}
		w.hashes[i] = list
	}
	return w
}

// appendBlock appends the token ids that stand for block j of a call: a trace has none, so they
// are made from the chunk's id and the block's place in it.
func (w *workload) appendBlock(dst []uint32, call, j int) []uint32 {
	per := w.Chunk / w.block
	first := uint32(w.Calls[call].IDs[j/per]*2654435761) + uint32(j%per*w.block)
	for k := range w.block {
		dst = append(dst, first+uint32(k))
	}
	return dst
}

// rate is the trace's own arrival rate in calls per second.
func (w *workload) rate() float64 {
	last := 0.0
	for i := range w.Calls {
		if w.Calls[i].Prev < 0 {
			last = max(last, w.Calls[i].At)
		}
	}
	return float64(len(w.Calls)) / max(last, 1e-3)
}

func newEngines(p *Profile, n, block int) []*engine {
	list := make([]*engine, n)
	for i := range list {
		list[i] = &engine{profile: p, block: block, slot: i, cache: newBlockCache(p.CacheTokens / block)}
	}
	return list
}

// play runs one policy. An empty policy is the oracle: all replicas share one cache, and each
// call goes to the replica with the least prefill left, first come first served.
func (j *job) play() (Numbers, error) {
	engines := newEngines(j.profile, j.replicas, j.work.block)
	if j.policy == "" {
		pool := newBlockCache(j.profile.CacheTokens / j.work.block * j.replicas)
		for _, e := range engines {
			e.cache = pool
		}
	}
	s := newSim(j.work, engines, j.speed, j.seed)
	if j.policy == "" {
		s.router = &oracle{sim: s, left: make([]float64, j.replicas), work: make([]float64, len(j.work.Calls))}
		s.run(0)
		return s.numbers(j.goal), nil
	}
	cfg := chooser.DefaultConfig()
	cfg.Policy = j.policy
	// The player measures the choice, so nobody is refused.
	cfg.Queue.MaxWait, cfg.Queue.MaxRequests = 0, math.MaxInt32
	// The text that stands for a chunk is short: the tree's bounds shrink with it.
	cfg.Tree.EvictAbove, cfg.Tree.EvictTo = cfg.Tree.EvictAbove/256, cfg.Tree.EvictTo/256
	r, err := newRouter(s, cfg, j)
	if err != nil {
		return Numbers{}, err
	}
	s.router = r
	if !s.run(j.most) {
		return Numbers{Mean: j.most, Abandoned: true}, r.err
	}
	n := s.numbers(j.goal)
	n.Predicted = quantilesOf(r.accuracy)
	return n, r.err
}

// job is one run.
type job struct {
	report   *Report // that it is for
	work     *workload
	profile  *Profile
	replicas int
	speed    float64
	seed     uint64
	policy   decision.Policy
	// bias, loss and delay worsen what the router knows: learned rates times bias, the share of
	// events lost, and their delay in seconds.
	bias, loss, delay float64
	// goal is what an answer must keep to count as good.
	goal Goal
	// most is the mean time to the first token at which the run is given up; 0 never.
	most float64
}

// oracle is the dispatcher of the pooled cache.
type oracle struct {
	sim  *sim
	left []float64 // predicted prefill per engine
	work []float64 // and per call
}

func (o *oracle) arrive(call int) {
	e := o.sim.engines[0]
	c := &o.sim.trace.Calls[call]
	keys := o.sim.trace.hashes[call]
	hit := e.cache.match(keys[:min(len(keys), c.In/e.block)]) * e.block
	o.work[call] = e.profile.prefill(float64(hit), float64(c.In-hit))
	best, least := 0, math.Inf(1)
	for i, e := range o.sim.engines {
		if left := o.left[i] + 1e-6*float64(len(e.decoding)); left < least {
			best, least = i, left
		}
	}
	o.left[best] += o.work[call]
	o.sim.send(call, best)
}

func (o *oracle) firstToken(call, e int)        { o.left[e] -= o.work[call] }
func (o *oracle) begun([]*sequence)             {}
func (o *oracle) finished(int, int)             {}
func (o *oracle) stored(int, int, int, int)     {}
func (o *oracle) removed(int, []blockhash.Hash) {}
