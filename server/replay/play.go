package replay

import (
	"math"
	"slices"

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

// Numbers are what one run, or several with different seeds, came to.
type Numbers struct {
	Mean float64 `json:"ttft_mean_s"`
	P50  float64 `json:"ttft_p50_s"`
	P90  float64 `json:"ttft_p90_s"`
	P99  float64 `json:"ttft_p99_s"`
	// HitRate is the share of prompt tokens found in a cache.
	HitRate float64 `json:"hit_rate"`
	// Imbalance is the busiest replica's prefill time over the mean.
	Imbalance float64 `json:"imbalance"`
	// Abandoned says that the run was given up because its mean had passed the limit: Mean is only
	// known to be at least that, and the others are not known.
	Abandoned bool `json:"abandoned,omitempty"`
	// rate is the calls per second while the fleet was full.
	rate float64
}

// numbers reads the result of a run.
func (s *sim) numbers() Numbers {
	var n Numbers
	var in, cached float64
	type moment struct {
		at, tokens float64
	}
	ttft := make([]float64, 0, len(s.first))
	firsts := make([]moment, 0, len(s.first))
	for i, f := range s.first {
		if math.IsNaN(f) {
			continue
		}
		tokens := float64(s.trace.Calls[i].In)
		ttft = append(ttft, f-s.arrived[i])
		n.Mean += f - s.arrived[i]
		in += tokens
		cached += float64(s.cached[i])
		firsts = append(firsts, moment{f, tokens})
	}
	if len(ttft) == 0 {
		return n
	}
	slices.Sort(ttft)
	quantile := func(q float64) float64 { return ttft[min(len(ttft)-1, int(q*float64(len(ttft))))] }
	n.Mean /= float64(len(ttft))
	n.P50, n.P90, n.P99, n.HitRate = quantile(0.5), quantile(0.9), quantile(0.99), cached/in
	// The rate is that of prompt tokens between a tenth and nineteen twentieths of them, so that
	// filling and draining the fleet do not count.
	const from, to = 0.10, 0.95
	slices.SortFunc(firsts, func(a, b moment) int {
		if a.at < b.at {
			return -1
		}
		return 1
	})
	var seen, began, ended float64
	for _, f := range firsts {
		before := seen
		seen += f.tokens
		if before < from*in && seen >= from*in {
			began = f.at
		}
		if before < to*in && seen >= to*in {
			ended = f.at
		}
	}
	if ended > began {
		n.rate = (to - from) * float64(len(ttft)) / (ended - began)
	}
	var most, all float64
	for _, e := range s.engines {
		most = max(most, e.busy)
		all += e.busy
	}
	if all > 0 {
		n.Imbalance = most / (all / float64(len(s.engines)))
	}
	return n
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
		return s.numbers(), nil
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
	return s.numbers(), r.err
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
