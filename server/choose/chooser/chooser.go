package chooser

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// Chooser decides and books. New makes one; Run runs it. Its parts are the evaluator, which finds what is known of the ranks for a
// request, the booker, the waiting room, the watch for ranks that stall, and the comparison of ranks with their equals.
type Chooser struct {
	*leases // the reports of callers outside this process

	settings   *current
	clock      clock
	queue      *holdqueue.Queue
	lines      *lines
	ranks      *rankTable
	index      *kvindex.Index
	memory     *memory
	evaluator  *evaluator
	booker     *booker
	room       *waitingRoom
	watch      *watch
	comparison *comparison
	alarm      *alarm
	metrics    *metrics
}

// Params are what a Chooser works with. Index and Book are needed, the rest may be zero.
type Params struct {
	Index *kvindex.Index
	Book  *load.Book
	// Reports has the engines' own reports, Engines their vital signs.
	Reports Reports
	Engines Engines
	// Gate keeps requests from replicas that fail; nil admits all.
	Gate Gate
	// Record receives the decisions and their outcomes.
	Record Record
	Log    *slog.Logger
	Meter  metric.MeterProvider
	// Now is the clock; nil takes the system's.
	Now func() time.Time
	// Shares has the tenants' shares of the hold queue; nil: all have the same.
	Shares holdqueue.Shares
	// Seed starts the dice; 0 takes one from the clock.
	Seed uint64
	// PaceBias multiplies what was learned about prefill times, to see what wrong rates cost; 0 is 1.
	PaceBias float64
}

func (p *Params) fill() {
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	if p.Now == nil {
		p.Now = time.Now
	}
	if p.Gate == nil {
		p.Gate = noGate{}
	}
	if p.PaceBias == 0 {
		p.PaceBias = 1
	}
	if p.Seed == 0 {
		p.Seed = uint64(time.Now().UnixNano())
	}
}

// New returns a Chooser. cfg must be valid. It starts nothing.
func New(cfg Config, params Params) *Chooser {
	params.fill()
	c := &Chooser{
		settings: &current{}, clock: clock{now: params.Now, start: params.Now()}, ranks: newRankTable(), index: params.Index, leases: newLeases(params.Book),
		queue: holdqueue.New(cfg.Queue, holdqueue.Params{Meter: params.Meter, Shares: params.Shares}),
	}
	c.settings.Store(newSettings(cfg))
	c.alarm = newAlarm(c.queue)
	rolls := &dice{}
	rolls.seed.Store(params.Seed)
	c.lines = newLines(c.queue, rolls)
	set := instruments.New(params.Meter, "server/choose/chooser")
	c.metrics = newMetrics(set, cfg.Ring)
	c.memory = &memory{
		clock: c.clock, settings: c.settings, index: params.Index, ring: cfg.Ring, tree: cfg.Tree,
		sessions: newSessions(c.metrics.turns), affinity: c.metrics.affinity,
	}
	c.comparison = &comparison{ranks: c.ranks, book: params.Book, clock: c.clock, alarm: c.alarm, log: params.Log, suspicions: c.metrics.suspicions}
	c.evaluator = &evaluator{
		clock: c.clock, settings: c.settings, ranks: c.ranks, index: params.Index, book: params.Book, reports: params.Reports, gate: params.Gate,
		queue: c.queue, memory: c.memory, comparison: c.comparison, residence: &residence{}, dice: rolls, bias: params.PaceBias, unreachable: &c.metrics.unreachable,
	}
	c.evaluator.residence.set(10)
	c.room = &waitingRoom{lines: c.lines, queue: c.queue, clock: c.clock, alarm: c.alarm}
	c.booker = &booker{
		evaluator: c.evaluator, lines: c.lines, leases: c.leases, record: params.Record, waiters: c.room, metrics: c.metrics,
		learning: learning{book: params.Book, reports: params.Reports, clock: c.clock, log: params.Log, predictions: &c.metrics.decisions.predictions},
	}
	c.room.holding = &holding{booker: c.booker, clock: c.clock, settings: c.settings, alarm: c.alarm, held: &c.metrics.held}
	c.room.admission = &admission{
		holding: c.room.holding, booker: c.booker, clock: c.clock, settings: c.settings, sessions: c.memory.sessions, alarm: c.alarm, log: params.Log, waits: &c.metrics.memoryWaits,
	}
	c.watch = &watch{
		engines: params.Engines, ranks: c.ranks, settings: c.settings, clock: c.clock, alarm: c.alarm, waiters: c.room, log: params.Log, stalls: c.metrics.stalls,
	}
	c.metrics.observe(set, c)
	return c
}

// sweepEvery is how often choices are removed after the load book has ended their lease.
const sweepEvery = 5 * time.Second

// Run visits the hold queue in time and judges the ranks until ctx ends; then it rejects every request that still waits.
func (c *Chooser) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { c.watch.run(ctx) })
	watching.Go(func() { c.comparison.run(ctx) })
	timer := time.NewTimer(sweepEvery)
	defer timer.Stop()
	swept := c.clock.now()
	for {
		if now := c.clock.now(); now.Sub(swept) >= sweepEvery {
			swept = now
			c.sweep()
		}
		c.Tick()
		timer.Reset(c.room.sleep())
		select {
		case <-ctx.Done():
			c.room.drain()
			return nil
		case <-timer.C:
		case <-c.alarm.wake:
		}
		c.alarm.sleepsUntil.Store(0)
	}
}

// Tick visits the requests that wait and are due, and returns when to call it next; false when no request
// waits. Run calls it; a player of traces calls it in virtual time.
func (c *Chooser) Tick() (next time.Time, ok bool) { return c.room.tick() }

// NextWake returns when Tick should be called next; false when no request waits.
func (c *Chooser) NextWake() (next time.Time, ok bool) { return c.room.nextWake() }

// AddRank notes that rank index of r exists at slot. A slot that is known keeps what was learned.
func (c *Chooser) AddRank(slot replica.Slot, r *replica.Replica, index int) {
	c.ranks.add(slot, r, index)
}

// RemoveRank forgets a rank: its rates, sessions and text. The load book is updated by its own RemoveRank.
func (c *Chooser) RemoveRank(slot replica.Slot) {
	c.ranks.remove(slot)
	c.memory.forget(slot, c.lines.all())
	for _, ln := range c.lines.all() {
		ln.memory.ledger.Remove(slot)
	}
	c.alarm.changed()
}

// Changed notes that the fleet changed (for example, a replica became ready): waiting requests are
// visited again.
func (c *Chooser) Changed() { c.alarm.changed() }

// Heard notes that a rank made progress, for example by its event feed.
func (c *Chooser) Heard(slot replica.Slot) {
	if r := c.ranks.at(slot); r != nil {
		r.liveness.Sign()
	}
}

// Waiting is the number of requests in the hold queue.
func (c *Chooser) Waiting() int { return c.queue.Len() }

// Rates lists what was learned about all ranks.
func (c *Chooser) Rates() []Rate { return c.ranks.rates(c.clock.since(c.clock.now())) }

// ExportModels returns the speed of the ranks that this router has learned about by its own requests.
func (c *Chooser) ExportModels() map[replica.Rank]speed.Model { return c.ranks.exportModels() }

// ImportModels takes the speed of ranks as other routers have learned it. Ranks that this router learns about itself keep
// their own; unknown ranks are ignored.
func (c *Chooser) ImportModels(models map[replica.Rank]speed.Model) {
	c.ranks.importModels(models, c.clock.now())
}
