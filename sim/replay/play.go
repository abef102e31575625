package replay

import (
	"math"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

// newWorkload makes a trace ready for engines with blocks of block tokens.
func newWorkload(t *Trace, block int) *workload {
	w := &workload{Trace: t, block: block, hashes: make([][]blockhash.Hash, len(t.Calls)), before: turnsBefore(t), sessions: t.sessionNames()}
	var tokens []uint32
	for i := range t.Calls {
		c := &t.Calls[i]
		seed := blockhash.Namespace{Adapter: c.Adapter}.Seed()
		list := make([]blockhash.Hash, (c.In+c.Out)/block)
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
// are made from the chunk's id and the block's place in it. The blocks of an answer that no later prompt
// continues have no ids and occur once.
func (w *workload) appendBlock(dst []uint32, call, j int) []uint32 {
	per, ids := w.Chunk/w.block, w.Calls[call].IDs
	var first uint32
	if j/per < len(ids) {
		first = uint32(ids[j/per]*2654435761) + uint32(j%per*w.block)
	} else {
		first = uint32((uint64(call)<<20 + uint64(j)) * 0x9e3779b97f4a7c15 >> 32)
	}
	for k := range w.block {
		dst = append(dst, first+uint32(k))
	}
	return dst
}

// play runs one policy. An empty policy is the oracle: all replicas share one cache, and each
// call goes to the replica with the least prefill left, first come first served.
func (j *job) play() (Numbers, error) {
	o := &j.options
	if j.report == nil && (j.work.After != nil || j.work.wave != Wave{}) {
		j.work = j.work.unbound()
	}
	if j.setup.Policy == "" {
		s := newSim(j.work, newPooled(&o.Profile, o.Hardware, o.Replicas, o.Block), j.speed, j.seed)
		s.pooled, s.delays = true, o.Delays
		if j.atOnce > 0 {
			s.limit(j.atOnce)
		}
		s.router = &oracle{sim: s, left: make([]float64, o.Replicas), work: make([]float64, len(j.work.Calls))}
		s.run(0)
		return s.numbers(o.Goal), nil
	}
	s := newSim(j.work, newEngines(&o.Profile, o.Hardware, o.Replicas, o.Block, o.Lies...), j.speed, j.seed)
	s.below = o.Tiers.below(o.Block)
	for _, e := range s.engines {
		s.below.addTo(e)
	}
	s.delays, s.legs.Transfers = o.Delays, o.Transfers
	s.misses.goal = o.Goal
	if j.missed > 0 {
		s.misses.allow(j.missed, len(j.work.Calls))
	}
	s.turn(o.Turns, &o.Profile)
	if j.atOnce > 0 {
		s.limit(j.atOnce)
	}
	if slices.Contains(otherRules(), j.setup.Policy) {
		return j.playOther(s)
	}
	v, err := newService(s, j.chooser(), j)
	if err != nil {
		return Numbers{}, err
	}
	s.router = v
	var scaler *autoscaler
	if j.setup.Scale != (ScaleRule{}) {
		scaler = newAutoscaler(v, j)
		s.router = scaler
	}
	if !s.run(j.most) {
		return Numbers{Mean: j.most, Abandoned: true, Kept: Kept{late: s.misses.late, slow: s.misses.slow}}, v.err()
	}
	n := s.numbers(o.Goal)
	if scaler != nil {
		n.Scaled = scaler.scaled()
	}
	if n.Chats != nil {
		if n.Chats.Alone, err = j.chatsAlone(s.atOnce); err != nil {
			return Numbers{}, err
		}
	}
	n.Predicted, n.DecidedAlone = quantilesOf(v.accuracy()), v.alone()
	return n, v.err()
}

// chooser is the configuration of the router's choice.
func (j *job) chooser() chooser.Config {
	o, cfg := &j.options, chooser.DefaultConfig()
	cfg.Policy = j.setup.Policy
	if o.NoPrograms {
		cfg.ProgramHorizon = 0
	}
	if o.Objective != "" {
		cfg.Objective = o.Objective
		cfg.SLO = chooser.SLOConfig{TTFT: time.Duration(o.Goal.TTFT * float64(time.Second)), TPOT: time.Duration(o.Goal.TPOT * float64(time.Second))}
	}
	cfg.Weights = o.Weights
	// The player measures the choice, so no call is rejected.
	// A bound of zero would have the routers of a fleet give up waiting for the decider after an hour.
	cfg.Queue.MaxWait, cfg.Queue.MaxRequests = 10_000*time.Hour, math.MaxInt32
	// The text that stands for a chunk is short: the tree's bounds shrink with it.
	cfg.Tree.EvictAbove, cfg.Tree.EvictTo = cfg.Tree.EvictAbove/256, cfg.Tree.EvictTo/256
	return cfg
}

// unbound is the workload without calls that wait for others and without waves: how fast a full fleet is shows when it always has work.
func (w *workload) unbound() *workload {
	t, c := *w.Trace, *w
	t.After, c.Trace, c.wave = nil, &t, Wave{}
	return &c
}

// job is one run.
type job struct {
	report  *Report // that it is for
	options Options
	work    *workload
	speed   float64
	seed    uint64
	setup   ruleset
	atOnce  int // sessions at once; 0: they start at their own times
	// most is the mean time to the first token at which the run is abandoned; 0 never.
	most float64
	// missed, above zero, is the share of requests that miss the goal at which the run is abandoned.
	missed float64
	// replicas, above zero, replace the options' number.
	replicas int
	// shares are the tenants' of the hold queue; nil: all have the same.
	shares holdqueue.Shares
}

// oracle is the dispatcher of the pooled cache.
type oracle struct {
	sim  *sim
	left []float64 // predicted prefill per engine
	work []float64 // and per call
}

func (o *oracle) arrive(call int) {
	if wait := o.sim.delays.tokenizing(o.sim.trace.Calls[call].In); wait > 0 {
		o.sim.after(wait, func() { o.submit(call) })
		return
	}
	o.submit(call)
}

func (o *oracle) submit(call int) {
	m := o.sim.engines[0].machine
	cfg := m.Config()
	c := &o.sim.trace.Calls[call]
	keys := o.sim.trace.hashes[call]
	hit := m.Pool().Match(keys[:min(len(keys), c.In/cfg.BlockSize)]) * cfg.BlockSize
	work := cfg.Timing.Prefill(c.In-hit, hit)
	best, least := 0, math.Inf(1)
	for i, e := range o.sim.engines {
		// Of equals the one with the fewest calls.
		calls := float64(len(e.machine.Running()) + len(e.machine.Waiting()))
		if left := o.left[i] + (work+1e-6*calls)/e.speed; left < least {
			best, least = i, left
		}
	}
	o.work[call] = work / o.sim.engines[best].speed
	o.left[best] += o.work[call]
	o.sim.send(call, best)
}

func (o *oracle) firstToken(a *attempt)  { o.left[a.engine] -= o.work[a.call] }
func (o *oracle) progress(*attempt, int) {}
func (o *oracle) finished(*attempt)      {}
func (o *oracle) changed(int, []kvEvent) {}
