package replay

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// router is the product's own choice in virtual time.
type router struct {
	*calls
	sim      *sim
	number   int // among the routers of the run
	chooser  *chooser.Chooser
	book     *load.Book
	index    *kvindex.Index
	gauges   *gauges // nil: none are read
	member   *member // nil: no fleet, it decides alone
	replicas []*replica.Replica
	epoch    time.Time
	due      due
	texts    bool
	job      *job
	dice     *rand.Rand // which events get lost
	// accuracy has the predicted over the actual time to the first token of each answer.
	accuracy []float64
	alone    int // calls that it decided because the decider did not answer
	err      error
	tokens   []uint32
	names    []kvblock.EngineHash
	decided  interface{ Decision(of *decision.Decision) } // nil: decisions are not recorded
}

// calls is the state of the calls; each of them is of one router.
type calls struct {
	choices  []*chooser.Choice
	requests []chooser.Request
	served   []replica.Slot // the rank that completed a call, NoSlot before
	servedBy []int          // the router that had it
	cameTo   []int          // the router that each call came to, -1 before
}

func newCalls(n int) *calls {
	return &calls{
		choices: make([]*chooser.Choice, n), requests: make([]chooser.Request, n),
		served: slices.Repeat([]replica.Slot{replica.NoSlot}, n), servedBy: make([]int, n), cameTo: slices.Repeat([]int{-1}, n),
	}
}

func newRouter(s *sim, cfg chooser.Config, j *job, number int, all *calls) (*router, error) {
	r := &router{
		calls: all, sim: s, number: number, job: j, dice: rand.New(rand.NewPCG(j.seed, 3+uint64(number)<<8)), epoch: time.Unix(1_000_000_000, 0),
	}
	bcfg := load.DefaultConfig()
	bcfg.Remembered = 16
	r.book = load.New(bcfg, load.Params{Scope: scope.Scope{}.At(r)})
	icfg := kvindex.DefaultConfig()
	icfg.MaxBytes = 1 << 40
	icfg.MaxRanks = max(icfg.MaxRanks, len(s.engines))
	r.index = kvindex.New(icfg, kvindex.Params{})
	r.chooser = chooser.New(cfg, chooser.Params{
		Index: r.index, Book: r.book, Reports: r, Record: r, Seed: 1 + j.seed<<20 + uint64(number)<<40,
		Pools: r, PaceBias: j.options.PaceBias, Shares: j.shares, SplitAbove: j.setup.Split.threshold(),
	})
	models := []replica.Model{{ID: "m"}}
	for _, name := range s.trace.adapterNames() {
		models = append(models, replica.Model{ID: name, Parent: "m"})
	}
	for i, e := range s.engines {
		rep := &replica.Replica{
			ID: replica.ID("r" + strconv.Itoa(i)), State: replica.StateReady, Slots: []replica.Slot{replica.Slot(i)},
			Models: models, BlockSize: s.trace.block, Blocks: e.machine.Pool().Size(), MaxBatchedTokens: e.machine.Config().MaxBatchedTokens,
			Labels: j.setup.Roles.labels(i),
		}
		r.replicas = append(r.replicas, rep)
		r.book.AddRank(replica.Slot(i))
		if err := r.index.AddRank(replica.Slot(i), kvindex.RankInfo{BlockSize: s.trace.block, Capacity: rep.Blocks}); err != nil {
			return nil, err
		}
		r.index.SetState(replica.Slot(i), kvblock.FeedExact)
		if j.options.Tiers.Store.Tokens > 0 {
			r.index.SetStore(replica.Slot(i), "store")
		}
		r.chooser.AddRank(replica.Slot(i), rep, 0)
	}
	r.texts = cfg.Policy == decision.PrefixAffinity
	return r, nil
}

// Serving implements the chooser's Pools.
func (r *router) Serving(string, string) []*replica.Replica { return r.replicas }

func (r *router) arrive(call int) {
	c := &r.sim.trace.Calls[call]
	req := &r.requests[call]
	*req = chooser.Request{
		Request: decision.Request{ID: strconv.Itoa(call), Model: "m", Tenant: c.Tenant},
		Pool:    chooser.Pool{Replicas: r.replicas},
		Caller:  chooser.Caller{Session: r.sim.trace.sessions[c.Session]},
		Reply:   chooser.Reply{Unstreamed: r.job.options.Answers.Whole},
		Terms:   chooser.Terms{Splittable: r.job.setup.Roles != Roles{} && r.job.setup.Split.splits()},
	}
	if (r.job.setup.Roles != Roles{}) && r.job.setup.Split.pulls() {
		req.Copier = prompts{r, call}
	}
	if c.Adapter != "" && !r.job.options.NoAdapterNames {
		req.Model, req.Adapter = c.Adapter, c.Adapter
	}
	if r.job.options.Nameless {
		req.Session = ""
	}
	req.ExpectedOutput, req.OutputLimit = r.job.options.Answers.expected(c.Out)
	k := r.knowledge(call)
	req.PromptTokens, req.Estimated = k.tokens, k.estimated
	if b := k.before; b >= 0 && b == int(r.sim.trace.before[call]) && r.served[b] != replica.NoSlot && r.servedBy[b] == r.number && k.known == r.sim.trace.Calls[b].In {
		req.Answer = chooser.Answer{Slot: r.served[b], Known: k.known, Held: min(k.known+r.sim.trace.Calls[b].Out, c.In) - 1}
	}
	hashes := k.hashes
	req.Hashes = func(int) []blockhash.Hash { return hashes }
	if r.texts {
		req.Text = textOf(c.IDs[:min(len(c.IDs), (c.In+r.sim.trace.Chunk-1)/r.sim.trace.Chunk)])
	}
	if wait := r.sim.delays.tokenizing(c.In); wait > 0 && !k.early {
		r.sim.after(wait, func() { r.submit(call) })
		return
	}
	r.submit(call)
}

// due is when a router works next without a call, in simulated seconds: its chooser's clock ticks, its index ends expired beliefs.
type due struct{ wake, expire float64 }

// expireEvery is how often a router's index ends expired beliefs, in simulated seconds; in real time it does so by itself.
const expireEvery = 0.25

func (r *router) submit(call int) {
	r.sim.look()
	if r.sim.now >= r.due.expire {
		r.due.expire = r.sim.now + expireEvery
		r.index.Expire(r.Now())
	}
	req := &r.requests[call]
	deliver := func(choice *chooser.Choice, err error) {
		var refused *chooser.Refused
		switch {
		case errors.As(err, &refused):
			r.sim.reject(call)
			return
		case err != nil:
			r.err = errors.Join(r.err, fmt.Errorf("call %d: %w", call, err))
			return
		}
		if choice.Decision.Alone != "" {
			r.alone++
		}
		r.choices[call] = choice
		if lead := choice.Prefill(); lead != nil {
			splits{r.sim}.split(call, int(lead.Slot), int(choice.Slot), r.computed)
			return
		}
		r.sim.send(call, int(choice.Slot))
	}
	if r.member != nil {
		r.member.frontend.Submit(req, time.Time{}, deliver)
	} else {
		r.chooser.Submit(req, time.Time{}, deliver)
	}
	r.plan()
}

// plan has the chooser's clock tick when it asks for it.
func (r *router) plan() {
	at, ok := r.chooser.NextWake()
	if !ok {
		return
	}
	t := max(at.Sub(r.epoch).Seconds(), r.sim.now+1e-6)
	if r.due.wake > r.sim.now && r.due.wake <= t {
		return
	}
	r.due.wake = t
	r.sim.schedule(event{at: t, kind: eventDo, do: func() {
		if r.due.wake == t {
			r.due.wake = 0
			r.sim.look()
			r.chooser.Tick()
			r.plan()
		}
	}})
}

// computed is the moment at which the router has the answer of the engine that computed a split call's prompt, and sends the call to the
// other one.
func (r *router) computed(a *attempt) {
	choice := r.choices[a.call]
	choice.Prefill().FirstToken()
	choice.Sent()
	r.plan()
}

// read ends the booking of the engine that computed a call's prompt: the other one has read it.
func (r *router) read(a *attempt) {
	if lead := r.choices[a.call].Prefill(); lead != nil {
		lead.Release(chooser.Result{End: decision.EndCompleted, PromptTokens: r.sim.trace.Calls[a.call].In, OutputTokens: 1, CachedTokens: a.from.lead.cached})
	}
}

func (r *router) firstToken(a *attempt) {
	if r.job.options.Answers.Whole {
		return
	}
	r.read(a)
	r.choices[a.call].FirstToken()
	r.plan()
}

func (r *router) progress(a *attempt, tokens int) {
	if !r.job.options.Answers.Whole {
		r.choices[a.call].Progress(tokens)
	}
}

func (r *router) finished(a *attempt) {
	c := &r.sim.trace.Calls[a.call]
	choice := r.choices[a.call]
	if r.job.options.Answers.Whole {
		r.read(a)
		r.judged(a, choice.Decision)
	} else {
		choice.Progress(c.Out)
	}
	choice.Release(chooser.Result{End: decision.EndCompleted, PromptTokens: c.In, OutputTokens: c.Out, CachedTokens: r.sim.cached[a.call]})
	r.served[a.call], r.servedBy[a.call] = choice.Slot, r.number
	r.choices[a.call] = nil
	r.plan()
}

// Decision implements booking.Record.
func (r *router) Decision(d *decision.Decision) {
	if r.decided != nil {
		r.decided.Decision(d)
	}
}

// Outcome implements booking.Record: it notes how right the prediction was.
func (r *router) Outcome(o decision.Outcome) {
	if o.TTFT > 0 && o.Predicted > 0 {
		r.accuracy = append(r.accuracy, o.Predicted.Seconds()/o.TTFT.Seconds())
	}
}

// changed delivers an engine's events, late or never where the run asks for that.
func (r *router) changed(e int, events []kvEvent) {
	if loss := r.job.options.EventLoss; loss > 0 {
		events = slices.DeleteFunc(events, func(kvEvent) bool { return r.dice.Float64() < loss })
	}
	if r.sim.delays.Event > 0 {
		r.sim.after(r.sim.delays.Event, func() { r.apply(e, events) })
		return
	}
	r.apply(e, events)
}

func (r *router) apply(e int, events []kvEvent) {
	for i := range events {
		switch ev := &events[i]; {
		case ev.tier != kvblock.TierGPU && r.job.options.Tiers.Unknown:
		case ev.stored == nil:
			r.names = append(r.names[:0], kvblock.EngineHash(ev.removed))
			r.index.Remove(replica.Slot(e), &kvblock.Removed{Hashes: r.names, Tier: ev.tier, Remote: ev.tier == kvblock.TierDisk})
		case ev.tier != kvblock.TierGPU:
			r.kept(e, ev)
		default:
			r.stored(e, ev.stored.call, ev.from, ev.to)
		}
	}
}

// kept delivers that blocks are in a tier below the GPU. Like vLLM's, the event has their names only.
func (r *router) kept(e int, ev *kvEvent) {
	r.names = r.names[:0]
	for _, key := range r.sim.trace.hashes[ev.stored.call][ev.from:ev.to] {
		r.names = append(r.names, kvblock.EngineHash(key))
	}
	r.index.Store(replica.Slot(e), &kvblock.Stored{Hashes: r.names, Tier: ev.tier, Remote: ev.tier == kvblock.TierDisk})
}

func (r *router) stored(e, call, from, to int) {
	keys := r.sim.trace.hashes[call]
	ev := kvblock.Stored{BlockSize: r.sim.trace.block, Adapter: r.sim.trace.Calls[call].Adapter, HasParent: from > 0}
	if from > 0 {
		ev.Parent = kvblock.EngineHash(keys[from-1])
	}
	r.tokens, r.names = r.tokens[:0], r.names[:0]
	for j := from; j < to; j++ {
		r.tokens = r.sim.trace.appendBlock(r.tokens, call, j)
		r.names = append(r.names, kvblock.EngineHash(keys[j]))
	}
	ev.Tokens, ev.Hashes = r.tokens, r.names
	r.index.Store(replica.Slot(e), &ev)
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
