package replay

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/kvpilot/kvpilot/server/blockhash"
	"github.com/kvpilot/kvpilot/server/chooser"
	"github.com/kvpilot/kvpilot/server/decision"
	"github.com/kvpilot/kvpilot/server/kvblock"
	"github.com/kvpilot/kvpilot/server/kvindex"
	"github.com/kvpilot/kvpilot/server/load"
	"github.com/kvpilot/kvpilot/server/replica"
)

// router is the product's own choice in virtual time.
type router struct {
	sim      *sim
	chooser  *chooser.Chooser
	index    *kvindex.Index
	replicas []*replica.Replica
	choices  []*chooser.Choice
	requests []chooser.Request
	epoch    time.Time
	wake     float64
	texts    bool
	// loss is the share of events that get lost, delay how late in seconds the others are.
	loss, delay float64
	dice        *rand.Rand
	// accuracy has the predicted over the actual time to the first token of each answer.
	accuracy []float64
	err      error
	tokens   []uint32
	names    []kvblock.EngineHash
}

func newRouter(s *sim, cfg chooser.Config, j *job) (*router, error) {
	r := &router{sim: s, dice: rand.New(rand.NewPCG(j.seed, 3)), loss: j.loss, delay: j.delay, epoch: time.Unix(1_000_000_000, 0), choices: make([]*chooser.Choice, len(s.trace.Calls)), requests: make([]chooser.Request, len(s.trace.Calls))}
	now := func() time.Time { return r.epoch.Add(time.Duration(s.now * float64(time.Second))) }
	bcfg := load.DefaultConfig()
	bcfg.Remembered = 16
	book, err := load.New(bcfg, load.Params{Now: now})
	if err != nil {
		return nil, err
	}
	icfg := kvindex.DefaultConfig()
	icfg.MaxBytes = 1 << 40
	icfg.MaxRanks = max(icfg.MaxRanks, len(s.engines))
	if r.index, err = kvindex.New(icfg, kvindex.Params{}); err != nil {
		return nil, err
	}
	r.chooser, err = chooser.New(cfg, chooser.Params{Index: r.index, Book: book, Now: now, Seed: 1 + j.seed<<20, PaceBias: j.bias, OnOutcome: r.ended})
	if err != nil {
		return nil, err
	}
	for i, e := range s.engines {
		rep := &replica.Replica{
			ID: replica.ID("r" + strconv.Itoa(i)), State: replica.StateReady, Slots: []replica.Slot{replica.Slot(i)},
			Models: []replica.Model{{ID: "m"}}, BlockSize: s.trace.block, Blocks: len(e.cache.entries) - 1, MaxBatchedTokens: e.profile.Budget,
		}
		r.replicas = append(r.replicas, rep)
		book.AddRank(replica.Slot(i))
		if err := r.index.AddRank(replica.Slot(i), kvindex.RankInfo{BlockSize: s.trace.block, Capacity: rep.Blocks}); err != nil {
			return nil, err
		}
		r.index.SetState(replica.Slot(i), kvblock.FeedExact)
		r.chooser.AddRank(replica.Slot(i), rep, 0)
	}
	r.texts = cfg.Policy == decision.PrefixAffinity
	return r, nil
}

func (r *router) arrive(call int) {
	c := &r.sim.trace.Calls[call]
	hashes := r.sim.trace.hashes[call]
	full := min(len(hashes), c.In/r.sim.trace.block)
	req := &r.requests[call]
	*req = chooser.Request{
		ID: strconv.Itoa(call), Model: "m", Replicas: r.replicas, PromptTokens: c.In, Session: "s" + strconv.Itoa(c.Session), ExpectedOutput: c.Out,
		Hashes: func(int) []blockhash.Hash { return hashes[:full] },
	}
	if r.texts {
		req.Text = textOf(c.IDs[:min(len(c.IDs), (c.In+r.sim.trace.Chunk-1)/r.sim.trace.Chunk)])
	}
	req.Yield = func() { r.takeBack(call) }
	r.submit(call)
}

// comeback is the time in seconds from taking a request back to sending it again.
const comeback = 0.003

// takeBack has a call that gives way go on later.
func (r *router) takeBack(call int) {
	choice, req := r.choices[call], &r.requests[call]
	r.sim.engines[choice.Slot].abort(call)
	r.sim.after(comeback, func() {
		choice.Release(chooser.Result{End: decision.EndYielded, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1})
		req.Attempt++
		req.Resumes = choice
		r.submit(call)
	})
}

func (r *router) submit(call int) {
	req := &r.requests[call]
	r.chooser.Submit(req, time.Time{}, func(choice *chooser.Choice, err error) {
		if err != nil {
			r.err = errors.Join(r.err, fmt.Errorf("call %d: %w", call, err))
			return
		}
		r.choices[call] = choice
		r.sim.send(call, int(choice.Slot))
	})
	r.plan()
}

// plan has the chooser's clock tick when it asks for it.
func (r *router) plan() {
	at, ok := r.chooser.NextWake()
	if !ok {
		return
	}
	t := max(at.Sub(r.epoch).Seconds(), r.sim.now+1e-6)
	if r.wake > r.sim.now && r.wake <= t {
		return
	}
	r.wake = t
	r.sim.schedule(event{at: t, kind: eventDo, do: func() {
		if r.wake == t {
			r.wake = 0
			r.chooser.Tick()
			r.plan()
		}
	}})
}

func (r *router) begun(calls []*sequence) {
	for _, q := range calls {
		if !r.choices[q.call].Begin() {
			r.err = errors.Join(r.err, fmt.Errorf("call %d: a first token after it gave way", q.call))
		}
	}
}

func (r *router) firstToken(call, _ int) {
	r.choices[call].FirstToken()
	r.plan()
}

func (r *router) finished(call, _ int) {
	c := &r.sim.trace.Calls[call]
	r.choices[call].Progress(c.Out)
	r.choices[call].Release(chooser.Result{End: decision.EndCompleted, PromptTokens: c.In, OutputTokens: c.Out, CachedTokens: r.sim.cached[call]})
	r.choices[call] = nil
	r.plan()
}

// ended notes how right the prediction was.
func (r *router) ended(o decision.Outcome) {
	if o.TTFT > 0 && o.Predicted > 0 {
		r.accuracy = append(r.accuracy, o.Predicted.Seconds()/o.TTFT.Seconds())
	}
}

func (r *router) stored(e, call, from, to int) {
	keys := r.sim.trace.hashes[call]
	ev := kvblock.Stored{BlockSize: r.sim.trace.block, HasParent: from > 0}
	if from > 0 {
		ev.Parent = kvblock.EngineHash(keys[from-1])
	}
	r.tokens, r.names = r.tokens[:0], r.names[:0]
	for j := from; j < to; j++ {
		r.tokens = r.sim.trace.appendBlock(r.tokens, call, j)
		r.names = append(r.names, kvblock.EngineHash(keys[j]))
	}
	ev.Tokens, ev.Hashes = r.tokens, r.names
	if r.delay > 0 {
		ev.Tokens, ev.Hashes = slices.Clone(ev.Tokens), slices.Clone(ev.Hashes)
	}
	r.publish(func() { r.index.Store(replica.Slot(e), &ev) })
}

func (r *router) removed(e int, keys []blockhash.Hash) {
	r.names = r.names[:0]
	for _, k := range keys {
		r.names = append(r.names, kvblock.EngineHash(k))
	}
	ev := kvblock.Removed{Hashes: r.names}
	if r.delay > 0 {
		ev.Hashes = slices.Clone(ev.Hashes)
	}
	r.publish(func() { r.index.Remove(replica.Slot(e), &ev) })
}

// publish delivers an event, late or never where the run asks for that.
func (r *router) publish(deliver func()) {
	switch {
	case r.loss > 0 && r.dice.Float64() < r.loss:
	case r.delay > 0:
		r.sim.after(r.delay, deliver)
	default:
		deliver()
	}
}

// textOf writes the chunks' ids as the text that stands for them.
func textOf(ids []uint64) string {
	b := make([]byte, 0, 8*len(ids))
	for _, id := range ids {
		b = strconv.AppendUint(b, id+1<<24, 36)
		b = append(b, ' ')
	}
	return string(b)
}
