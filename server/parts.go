package server

import (
	"errors"
	"log/slog"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/observe/decisionlog"
	"github.com/kvpilot/kvpilot/server/observe/history"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/observe/telemetry"
	"github.com/kvpilot/kvpilot/server/peers/fleet"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/pins"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// rememberedBodies bounds what is kept of bodies that came more than once: a few kilobytes each.
const rememberedBodies = 16 << 20

// errNoReplica is why a router without replicas is not ready.
var errNoReplica = errors.New("no replica is known")

// parts are everything below the surfaces.
type parts struct {
	log       *slog.Logger
	registry  *registry.Registry
	kvindex   *kvindex.Index
	events    *kvevents.Plane
	stats     *enginestats.Poller
	book      *load.Book
	limiter   *quota.Limiter
	chooser   *chooser.Chooser
	tokens    *tokenizer.Pool
	upstream  *upstream.Client
	breaker   *breaker.Breaker
	retries   *retry.Budget
	lookup    func(string) (string, bool)
	decisions *decisionlog.Log
	pins      *pins.Pins
	router    *router.Router
	peers     *fleet.Fleet // nil for a router alone
	history   *history.History
	// changedFleet holds one token when the fleet has changed since the last look.
	changedFleet chan struct{}
	// stored, when set, is called with each event of stored blocks before the index has them.
	stored func(replica.Slot, *kvblock.Stored)
}

// newParts builds the parts, lower ones first.
func newParts(c config.Config, t *telemetry.Telemetry, lookup func(string) (string, bool)) (*parts, error) {
	p := &parts{lookup: lookup, log: t.Log(), history: history.New(), changedFleet: make(chan struct{}, 1)}
	p.buildIndex(c, t)
	p.buildLoad(c, t)
	p.buildRegistry(c, t)
	p.buildChoice(c, t)
	p.pins = pins.New(c.Upstream.Pins, nil)
	if err := p.buildFleet(c, t); err != nil {
		return nil, err
	}
	if err := p.buildRouter(c, t); err != nil {
		return nil, err
	}
	return p, nil
}

// part names a part in its log lines.
func (p *parts) part(name string) *slog.Logger { return p.log.With("part", name) }

func (p *parts) buildIndex(c config.Config, t *telemetry.Telemetry) {
	p.kvindex = kvindex.New(c.KVIndex, kvindex.Params{Log: p.part("kvindex"), Meter: t.Meters(), Feeds: feeds{p}})
	p.events = kvevents.New(c.KVEvents, kvevents.Params{Sink: sink{p.kvindex, p}, Log: p.part("kvevents"), Meter: t.Meters()})
}

func (p *parts) buildLoad(c config.Config, t *telemetry.Telemetry) {
	p.book = load.New(c.Load, load.Params{Log: p.part("load"), Meter: t.Meters(), Rank: p.rankOf})
	p.stats = enginestats.New(c.EngineStats, enginestats.Params{
		Log: p.part("enginestats"), Meter: t.Meters(), Load: p, Listener: p,
	})
}

func (p *parts) buildRegistry(c config.Config, t *telemetry.Telemetry) {
	p.registry = registry.New(c.Registry, registry.Params{
		Log: p.part("registry"), Meter: t.Meters(), Lookup: p.lookup, Observer: p, Reporter: p,
	})
}

func (p *parts) buildChoice(c config.Config, t *telemetry.Telemetry) {
	p.decisions = decisionlog.New(c.Decisions, decisionlog.Params{Log: p.part("decisionlog"), Meter: t.Meters(), Line: grpcapi.DecisionLine})
	p.breaker = breaker.New(c.Upstream.Breaker, nil)
	p.breaker.Meter(t.Meters(), p.replicaIDs)
	p.limiter = quota.New(c.Tenants, quota.Params{Meter: t.Meters()})
	p.chooser = chooser.New(c.Chooser, chooser.Params{
		Index: p.kvindex, Book: p.book, Engine: p.report, Vitals: p.vitals, Ask: func(slot replica.Slot) { p.stats.Ask(slot) }, Gate: p.breaker,
		OnDecision: p.decided, OnOutcome: p.ended, Weight: p.limiter.Weight,
		Log: p.part("chooser"), Meter: t.Meters(),
	})
}

func (p *parts) replicaIDs() []replica.ID {
	var ids []replica.ID
	for _, r := range p.registry.Snapshot().Replicas {
		ids = append(ids, r.ID)
	}
	return ids
}

// buildFleet makes the parts that join this router with others, if it is to be in a fleet.
func (p *parts) buildFleet(c config.Config, t *telemetry.Telemetry) (err error) {
	if c.Fleet.Listen == "" {
		return nil
	}
	p.peers, err = fleet.New(c.Fleet, fleet.Params{
		Registry: p.registry, Breaker: p.breaker, Chooser: p.chooser, Index: p.kvindex, IndexBytes: int64(c.KVIndex.MaxBytes), Feeds: p.events, Pins: p.pins, Accounts: p.limiter,
		Log: p.log, Meter: t.Meters(), Tracer: t.Tracers(),
	})
	if err == nil {
		p.limiter.Join(p.peers.Limits())
	}
	return err
}

func (p *parts) buildRouter(c config.Config, t *telemetry.Telemetry) (err error) {
	p.upstream = upstream.New(c.Upstream, upstream.Params{Log: p.part("upstream"), Meter: t.Meters(), PlainSockets: !c.Listen.RawSockets})
	p.retries = retry.NewBudget(c.Upstream.Retry, nil)
	p.tokens = tokenizer.New(c.Tokenizer, tokenizer.Params{Log: p.part("tokenizer"), Meter: t.Meters(), PlainSockets: !c.Listen.RawSockets,
		Tracer: t.Tracers().Tracer("github.com/kvpilot/kvpilot/server/tokens/tokenizer", trace.WithSchemaURL(span.SchemaURL))})
	choose, origin, shared := p.chooser.Choose, "", router.FleetPins(nil)
	if p.peers != nil {
		choose, origin, shared = p.peers.Frontend().Choose, p.peers.ID(), p.peers.Facts()
	}
	p.router, err = router.New(c.Router, router.Params{
		Registry: p.registry, Tokens: p.tokens, Chooser: p.chooser, ChooseRank: choose, Origin: origin,
		Upstream: p.upstream, Breaker: p.breaker, Budget: p.retries, Pins: p.pins, Fleet: shared,
		Limits:   p.limiter,
		Bodies:   openai.NewMemory(rememberedBodies),
		Attempts: c.Upstream.Retry.Attempts, Lease: c.Load.Lease, Believe: p.believeText, Count: p.history,
		Log: p.part("router"), Meter: t.Meters(), Tracer: t.Tracers(),
	})
	return err
}

// decided and ended report the chooser's decisions and outcomes to the parts that record them.

func (p *parts) decided(d *decision.Decision) {
	p.decisions.Add(d)
	p.history.Decision(d)
}

func (p *parts) ended(o decision.Outcome) {
	p.decisions.Finish(o)
	p.history.Outcome(o)
}
