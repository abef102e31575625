package chooser

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/choose/liveness"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// Chooser decides and books. New makes one; Run runs it.
type Chooser struct {
	settings atomic.Pointer[Settings]
	// ring and tree are of the settings that the chooser began with.
	ring    selector.RingConfig
	tree    selector.TreeConfig
	params  Params
	log     *slog.Logger
	clock   func() time.Time
	start   time.Time
	queue   *holdqueue.Queue
	metrics *metrics

	ranks    atomic.Pointer[[]*rank]
	ranksMu  sync.Mutex  // serialises AddRank and RemoveRank
	kinds    speed.Kinds // guarded by ranksMu
	conduct  conduct.Fleet
	judges   atomic.Bool // Run compares the ranks with their equals
	lines    sync.Map    // model name to *line
	lineList atomic.Pointer[[]*line]
	linesMu  sync.Mutex // serialises new lines
	sessions *sessions
	seed     atomic.Uint64
	visits   atomic.Uint64 // of the hold queue so far
	scratch  sync.Pool
	// residence is the mean time in seconds that a request decodes.
	residence number
	booked    sync.Map // reservation id to *Choice, for callers outside the process
	wake      chan struct{}
	// sleepsUntil is until when Run sleeps, on the chooser's scale; 0 while it does not.
	sleepsUntil atomic.Int64
}

// Params are what a Chooser works with. Index and Book are needed, the rest may be zero.
type Params struct {
	Index *kvindex.Index
	Book  *load.Book
	// Engine sets its last argument to the engine's own report as it stands at now, while prefilling of this router's requests may wait
	// there for their first token; nil or false when there is none. Every choice asks for every rank.
	Engine func(slot replica.Slot, now time.Time, prefilling int, to *Report) bool
	// Vitals returns the progress of a rank's engine; nil: none is known, and no rank counts as stalled.
	Vitals func(slot replica.Slot, now time.Time) liveness.Vitals
	// Ask requests fresh Vitals of a rank's engine; nil: they arrive without a request.
	Ask func(slot replica.Slot)
	// Gate keeps requests from replicas that fail; nil admits all.
	Gate Gate
	// OnDecision, when set, receives each decision that was made (dry runs included) and must not
	// block; OnOutcome receives the outcome of each that was booked.
	OnDecision func(*decision.Decision)
	OnOutcome  func(decision.Outcome)
	Log        *slog.Logger
	Meter      metric.MeterProvider
	// Now is the clock; nil takes the system's.
	Now func() time.Time
	// Weight is a tenant's share of the hold queue relative to the other tenants; nil: all have the same.
	Weight func(tenant string) float64
	// Seed starts the dice; 0 takes one from the clock.
	Seed uint64
	// PaceBias multiplies what was learned about prefill times, to see what wrong rates cost; 0 is 1.
	PaceBias float64
}

// New returns a Chooser. cfg must be valid. It starts nothing.
func New(cfg Config, params Params) *Chooser {
	queue := holdqueue.New(cfg.Queue, holdqueue.Params{Meter: params.Meter, Weight: params.Weight})
	c := &Chooser{ring: cfg.Ring, tree: cfg.Tree, params: params, log: params.Log, clock: params.Now, queue: queue, sessions: newSessions(), wake: make(chan struct{}, 1)}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.clock == nil {
		c.clock = time.Now
	}
	if c.params.Gate == nil {
		c.params.Gate = noGate{}
	}
	if c.params.PaceBias == 0 {
		c.params.PaceBias = 1
	}
	c.start = c.clock()
	c.settings.Store(newSettings(cfg))
	c.ranks.Store(&[]*rank{})
	c.lineList.Store(&[]*line{})
	c.residence.set(10)
	c.scratch.New = func() any { return new(scratch) }
	seed := params.Seed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	c.seed.Store(seed)
	c.metrics = newMetrics(params.Meter, c)
	params.Book.OnExpired(c.expired)
	return c
}

// sweepEvery is how often choices are removed after the load book has ended their lease.
const sweepEvery = 5 * time.Second

// Run visits the hold queue in time and judges the ranks until ctx ends; then it rejects every request that still waits.
func (c *Chooser) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { c.watchRanks(ctx) })
	watching.Go(func() { c.judgeAnswers(ctx) })
	timer := time.NewTimer(sweepEvery)
	defer timer.Stop()
	swept := c.clock()
	for {
		if now := c.clock(); now.Sub(swept) >= sweepEvery {
			swept = now
			c.sweep()
		}
		c.Tick()
		timer.Reset(c.sleep())
		select {
		case <-ctx.Done():
			c.drain()
			return nil
		case <-timer.C:
		case <-c.wake:
		}
		c.sleepsUntil.Store(0)
	}
}

// AddRank notes that rank index of r exists at slot. A slot that is known keeps what was learned.
func (c *Chooser) AddRank(slot replica.Slot, r *replica.Replica, index int) {
	c.ranksMu.Lock()
	defer c.ranksMu.Unlock()
	old := *c.ranks.Load()
	if int(slot) < len(old) && old[slot] != nil {
		return
	}
	table := make([]*rank, max(len(old), int(slot)+1))
	copy(table, old)
	table[slot] = c.newRank(slot, r, index)
	c.ranks.Store(&table)
}

// RemoveRank forgets a rank: its rates, sessions and text. The load book is updated by its own RemoveRank.
func (c *Chooser) RemoveRank(slot replica.Slot) {
	c.ranksMu.Lock()
	old := *c.ranks.Load()
	if int(slot) < len(old) && old[slot] != nil {
		table := append([]*rank(nil), old...)
		c.kinds.Remove(old[slot].speed)
		c.conduct.Remove(old[slot].conduct)
		table[slot] = nil
		c.ranks.Store(&table)
	}
	c.ranksMu.Unlock()
	for _, ln := range *c.lineList.Load() {
		if t := ln.tree.Load(); t != nil {
			t.Remove(slot)
		}
	}
	c.sessions.forget(slot)
	c.forgetPrograms(slot)
	c.nudge()
}

// Changed notes that the fleet changed (for example, a replica became ready): waiting requests are
// visited again.
func (c *Chooser) Changed() { c.nudge() }

// Waiting is the number of requests in the hold queue.
func (c *Chooser) Waiting() int { return c.queue.Len() }

func (c *Chooser) rank(slot replica.Slot) *rank {
	table := *c.ranks.Load()
	if int(slot) >= len(table) {
		return nil
	}
	return table[slot]
}

// since is now on the chooser's own scale, which the load estimate uses.
func (c *Chooser) since(now time.Time) int64 { return int64(now.Sub(c.start)) }

// nudge makes Run visit the queue.
func (c *Chooser) nudge() {
	if c.queue.Len() > 0 {
		c.wakeRun()
	}
}

// Rate is what was learned about a rank.
type Rate struct {
	Slot    replica.Slot
	Replica replica.ID
	Rank    int
	// TokensPerSecond is the prefill rate at no context, Bend the context at which it halves.
	TokensPerSecond float64
	Bend            float64
	// Overhead is the time in seconds that a request spends outside of engine steps.
	Overhead float64
	// StepTime is the time of a decode step with nothing to read, in seconds.
	StepTime float64
	// Samples counts the pieces of busy time behind this, Spread is the uncertainty of the rate as a
	// share of it, and Source is its origin.
	Samples int
	Spread  float64
	Source  decision.SpeedSource
	// Error is the mean of predicted ÷ actual time to the first token of late.
	Error float64
	// Busy is the share of the last minute's time taken by the prefill routed there.
	Busy float64
	// Conduct is how it behaves compared with its equals.
	Conduct conduct.Record
}

// Rates lists what was learned about all ranks.
func (c *Chooser) Rates() []Rate {
	now := c.since(c.clock())
	var rates []Rate
	for _, r := range *c.ranks.Load() {
		if r == nil {
			continue
		}
		m := r.speed.Model()
		rates = append(rates, Rate{
			Slot: r.slot, Replica: r.replica, Rank: r.index, TokensPerSecond: 1 / m.Token, Bend: m.Bend, Overhead: m.Overhead,
			StepTime: m.Base, Samples: m.Samples, Spread: m.Spread, Source: m.Source, Error: r.speed.Error(), Busy: r.load(now), Conduct: r.conduct.About(),
		})
	}
	return rates
}
