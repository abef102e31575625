package chooser

import (
	"context"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/adapters"
	"github.com/kvpilot/kvpilot/server/choose/chooser/answers"
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/booking"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/compare"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/chooser/follow"
	"github.com/kvpilot/kvpilot/server/choose/chooser/leases"
	"github.com/kvpilot/kvpilot/server/choose/chooser/past"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/choose/chooser/reports"
	"github.com/kvpilot/kvpilot/server/choose/chooser/settings"
	"github.com/kvpilot/kvpilot/server/choose/chooser/waiting"
	"github.com/kvpilot/kvpilot/server/choose/chooser/watch"
	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// Chooser decides and books. New makes one; Run runs it. Its parts are the evaluator, which collects the state of the ranks for a request,
// the booker, the waiting room, the watch for ranks that stall, and the comparison of ranks with their equals.
type Chooser struct {
	*leases.Leases // the reports of callers outside this process
	adoption

	ranks      *rank.Table
	settings   *settings.Current
	clock      *clock.Clock
	adapters   *adapters.Fleet
	memory     *past.Memory
	evaluator  *evaluate.Evaluator
	watch      *watch.Watch
	comparison *compare.Comparison
	metrics    *metrics
}

// Params are the parts that a Chooser works with. Index and Book are needed, the rest may be zero. The Book's clock is the Chooser's.
type Params struct {
	Index *kvindex.Index
	Book  *load.Book
	// Reports has the engines' own reports, Engines their vital signs.
	Reports reports.Reports
	Engines watch.Engines
	// Gate keeps requests from replicas that fail; nil admits all.
	Gate evaluate.Gate
	// Record receives the decisions and their outcomes.
	Record booking.Record
	Scope  scope.Scope
	// Pools has the pools' replicas for requests that wait; nil: they keep the replicas with which they came.
	Pools waiting.Pools
	// Shares has the tenants' shares of the hold queue; nil: all have the same.
	Shares holdqueue.Shares
	// Seed starts the dice; 0 takes one from the clock.
	Seed uint64
	// PaceBias multiplies the learned prefill times, to see what wrong rates cost; 0 is 1.
	PaceBias float64
	// SplitAbove has a threshold decide which requests are split, to compare with other routers; nil: the prices decide.
	SplitAbove *selector.Threshold
}

func (p *Params) fill() {
	if p.Gate == nil {
		p.Gate = evaluate.NoGate{}
	}
	if p.PaceBias == 0 {
		p.PaceBias = 1
	}
	if p.Seed == 0 {
		p.Seed = uint64(time.Now().UnixNano())
	}
}

// New returns a Chooser. cfg must be valid. It starts nothing.
func New(cfg settings.Config, params Params) *Chooser {
	params.fill()
	measured, set := newMetrics(params.Scope.Meters())
	log := params.Scope.Log()
	now, inForce, rolls := clock.New(params.Book.Clock()), &settings.Current{}, &evaluate.Dice{}
	inForce.Store(settings.New(cfg))
	rolls.Seed.Store(params.Seed)
	c := &Chooser{settings: inForce, clock: now, ranks: rank.NewTable(now), Leases: leases.New(params.Book), metrics: measured, adapters: &adapters.Fleet{}}
	queue := holdqueue.New(cfg.Queue, holdqueue.Params{Scope: params.Scope, Shares: params.Shares})
	c.room = waiting.New(queue, now, params.Pools, log)
	c.memory = &past.Memory{
		Clock: now, Settings: inForce, Index: params.Index, Ring: cfg.Ring, Tree: cfg.Tree,
		Sessions: past.NewSessions(&measured.Turns), Affinity: past.NewAffinity(set, cfg.Ring),
	}
	c.comparison = &compare.Comparison{Ranks: c.ranks, Book: params.Book, Clock: now, Waiting: c.room, Log: log, Suspicions: &measured.Suspicions}
	c.evaluator = &evaluate.Evaluator{
		Clock: now, Settings: inForce, Ranks: c.ranks, Index: params.Index, Book: params.Book, Reports: params.Reports, Gate: params.Gate,
		Queue: queue, Memory: c.memory, Contexts: programs.NewRanks(), Comparison: c.comparison, Residence: answers.NewResidence(), Lanes: &transfer.Lanes{}, Copies: &transfer.Copies{}, Adapters: c.adapters, SplitAbove: params.SplitAbove, Dice: rolls, Bias: params.PaceBias, Unreachable: &measured.Unreachable.Int64,
	}
	c.booker = &booking.Booker{
		Evaluator: c.evaluator, Leases: c.Leases, Record: params.Record, Waiters: c.room, Metrics: &measured.Bookings, Withdrawn: &measured.Withdrawn,
		Learning: follow.Learning{Book: params.Book, Reports: params.Reports, Clock: now, Log: log, Predictions: &measured.Predictions},
	}
	c.room.Open(c.booker)
	c.watch = &watch.Watch{
		Engines: params.Engines, Ranks: c.ranks, Settings: inForce, Clock: now, Waiting: c.room, Log: log, Metrics: &measured.Stalls,
	}
	c.observe(set)
	return c
}

// sweepEvery is how often choices are removed after the load book has ended their lease.
const sweepEvery = 5 * time.Second

// Run visits the hold queue in time and judges the ranks until ctx ends; then it rejects every request that still waits.
func (c *Chooser) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { c.watch.Run(ctx) })
	watching.Go(func() { c.comparison.Run(ctx) })
	timer := time.NewTimer(sweepEvery)
	defer timer.Stop()
	swept := c.clock.Now()
	for {
		if now := c.clock.Now(); now.Sub(swept) >= sweepEvery {
			swept = now
			c.Sweep()
		}
		c.room.Tick()
		if !c.room.Pause(ctx, timer, sweepEvery) {
			c.room.Drain()
			return nil
		}
	}
}

// RemoveRank forgets a rank: its rates, sessions and text. The load book is updated by its own RemoveRank.
func (c *Chooser) RemoveRank(slot replica.Slot) {
	c.ranks.Remove(slot)
	for of := range c.room.Models() {
		of.Forget(slot)
	}
	c.memory.Sessions.Forget(slot)
	c.adapters.Remove(slot)
	c.evaluator.Contexts.Remove(slot)
	c.room.Changed()
}

// AdapterLoaded notes that a call has loaded a LoRA adapter on a replica, or, not loaded, that one has unloaded it.
func (c *Chooser) AdapterLoaded(r *replica.Replica, adapter string, loaded bool) {
	for _, slot := range r.Slots {
		if loaded {
			c.adapters.Loaded(slot, adapter, c.clock.Passed())
		} else {
			c.adapters.Unloaded(slot, adapter)
		}
	}
}

// AdapterInFlight counts the requests with a LoRA adapter on a replica.
func (c *Chooser) AdapterInFlight(r *replica.Replica, adapter string) (count int) {
	for _, slot := range r.Slots {
		count += c.adapters.InFlight(slot, adapter)
	}
	return count
}

// AdapterDemands lists the LoRA adapters of which requests have come, the most used first.
func (c *Chooser) AdapterDemands() []adapters.Demand { return c.adapters.Demands(c.clock.Passed()) }

// Changed notes that the fleet changed (for example, a replica became ready): waiting requests are
// visited again.
func (c *Chooser) Changed() { c.room.Changed() }

// Settings returns the current settings, for a request that begins.
func (c *Chooser) Settings() *settings.Settings { return c.settings.Load() }

// Config returns the current config.
func (c *Chooser) Config() settings.Config { return c.settings.Load().Config }

// Update puts new settings in force, for requests that begin from now on. Ring and Tree stay as they were. When it returns
// an error, nothing has changed.
func (c *Chooser) Update(cfg settings.Config) error {
	old := c.Config()
	cfg.Ring, cfg.Tree = old.Ring, old.Tree
	if err := cfg.Validate(); err != nil {
		return err
	}
	c.room.Update(cfg.Queue)
	c.settings.Store(settings.New(cfg))
	c.room.Changed() // requests that wait may have room now
	return nil
}

// ExpectedOutput is the number of output tokens to expect of req, as far as this router knows: for a router that decides in its place.
func (c *Chooser) ExpectedOutput(req *ask.Request) int {
	return c.room.ModelOf(req.Model).Lengths.Expected(req.Tenant, req.ExpectedOutput, req.OutputLimit)
}
