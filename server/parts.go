package server

import (
	"encoding/json"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/ranks"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/fleet/directory"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/observe/decisionlog"
	"github.com/kvpilot/kvpilot/server/observe/demand"
	"github.com/kvpilot/kvpilot/server/observe/history"
	"github.com/kvpilot/kvpilot/server/observe/telemetry"
	"github.com/kvpilot/kvpilot/server/peers/fleet"
	"github.com/kvpilot/kvpilot/server/peers/forward"
	"github.com/kvpilot/kvpilot/server/route/placement"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/route/splits"
	"github.com/kvpilot/kvpilot/server/route/standby"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/pins"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// rememberedBodies bounds the memory of bodies that came more than once: a few kilobytes each.
const rememberedBodies = 16 << 20

// parts are everything below the surfaces.
type parts struct {
	scope     scope.Scope
	ranks     *ranks.Ranks
	directory *directory.Directory
	limiter   *quota.Limiter
	chooser   *chooser.Chooser
	tokens    *tokenizer.Pool
	upstream  *upstream.Client
	breaker   *breaker.Breaker
	retries   *retry.Budget
	decisions *decisionlog.Log
	pins      *pins.Pins
	router    *router.Router
	peers     *fleet.Fleet // nil for a router alone
	history   *history.History
	splits    *splits.Splits
	standby   *standby.Room
	placement *placement.Rule
	demand    *demand.Demand
}

// newParts builds the parts, lower ones first. watcher may be nil.
func newParts(c config.Config, t *telemetry.Telemetry, env registry.Environment, watcher ranks.Watcher) (*parts, error) {
	p := &parts{scope: t.Scope(), history: history.New()}
	p.ranks = ranks.New(
		ranks.Config{Registry: c.Registry, Index: c.KVIndex, Events: c.KVEvents, Stats: c.EngineStats, Load: c.Load},
		ranks.Params{Env: env, Watcher: watcher, Scope: p.scope},
	)
	p.directory = directory.New(c.Directory, directory.Params{Blocks: p.ranks.Index, Scope: p.scope.Part("directory")})
	p.buildChoice(c)
	p.pins = pins.New(c.Upstream.Pins)
	if err := p.buildFleet(c); err != nil {
		return nil, err
	}
	p.buildRouter(c)
	p.ranks.Join(p.followers())
	return p, nil
}

// part names a part in its log lines.
func (p *parts) part(name string) scope.Scope { return p.scope.Part(name) }

func (p *parts) buildChoice(c config.Config) {
	p.decisions = decisionlog.New(c.Decisions, decisionlog.Params{Lines: lines{}, Scope: p.part("decisionlog")})
	p.breaker = breaker.New(c.Upstream.Breaker)
	p.breaker.Meter(p.scope.Meters(), p.ranks.IDs)
	p.limiter = quota.New(c.Tenants, quota.Params{Scope: p.scope})
	p.chooser = chooser.New(c.Chooser, chooser.Params{
		Index: p.ranks.Index, Book: p.ranks.Book, Reports: p.ranks, Engines: p.ranks, Gate: p.breaker, Record: record{p}, Pools: p.ranks, Shares: p.limiter,
		Scope: p.part("chooser"),
	})
}

// followers are the parts that keep state per rank or replica.
func (p *parts) followers() ranks.Followers {
	f := ranks.Followers{Chooser: p.chooser, Tokens: p.tokens, Breaker: p.breaker}
	if p.peers != nil {
		f.Peers = p.peers.Facts()
	}
	return f
}

// buildFleet makes the parts that join this router with others, if it is to be in a fleet.
func (p *parts) buildFleet(c config.Config) (err error) {
	if c.Fleet.Listen == "" {
		return nil
	}
	p.peers, err = fleet.New(c.Fleet, fleet.Params{
		Registry: p.ranks.Registry, Breaker: p.breaker, Chooser: p.chooser, Index: p.ranks.Index, IndexBytes: int64(c.KVIndex.MaxBytes), Feeds: p.ranks.Events, Pins: p.pins, Accounts: p.limiter,
		Scope: p.scope,
	})
	if err == nil {
		p.limiter.Join(p.peers.Limits())
	}
	return err
}

func (p *parts) buildRouter(c config.Config) {
	p.upstream = upstream.New(c.Upstream, upstream.Params{Scope: p.part("upstream"), PlainSockets: !c.Listen.RawSockets})
	p.demand = demand.New(demand.Params{Utilization: c.Scaling.Utilization, Models: c.Scaling.Models, Pools: poolStates{p}, Scope: p.scope})
	p.standby = standby.New(c.Scaling, standby.Params{
		Registry: p.ranks.Registry, Engines: p.ranks, Client: p.upstream, Demand: p.demand, Scope: p.part("standby"),
	})
	spread := placement.Params{Registry: p.ranks.Registry, Record: p.chooser, Client: p.upstream, Scope: p.part("placement")}
	if p.peers != nil {
		spread.Fleet = p.peers
	}
	p.placement = placement.New(c.Adapters, spread)
	p.splits = splits.New(c.Splits, splits.Params{Fleet: p.peers.Announcer(), Scope: p.part("splits")})
	p.retries = retry.NewBudget(c.Upstream.Retry)
	p.tokens = tokenizer.New(c.Tokenizer, tokenizer.Params{Scope: p.part("tokenizer"), PlainSockets: !c.Listen.RawSockets})
	var decider attempt.Decider = p.chooser
	origin, shared := "", intake.FleetPins(nil)
	if p.peers != nil {
		decider, origin, shared = p.peers.Frontend(), p.peers.ID(), p.peers.Facts()
	}
	p.router = router.New(c.Router, router.Params{
		Registry: p.ranks.Registry, Tokens: p.tokens, Chooser: p.chooser, Decider: decider, Origin: origin,
		Upstream: p.upstream, Breaker: p.breaker, Budget: p.retries, Pins: p.pins, Fleet: shared,
		Limits: p.limiter, PerModel: intake.PerModel{Splits: p.splits, Standby: p.standby, Directory: p.directory},
		Bodies:   openai.NewMemory(rememberedBodies),
		Attempts: c.Upstream.Retry.Attempts, Lease: c.Load.Lease, Guesses: p.ranks, Count: p.history,
		Scope: p.part("router"),
	})
}

// lines are the entries of the decision log in the contract's form.
type lines struct{}

func (lines) Line(e decisionlog.Entry) json.Marshaler { return grpcapi.DecisionLine(e) }

// record reports the chooser's decisions and outcomes to the parts that record them.
type record struct{ *parts }

func (r record) Decision(d *decision.Decision) {
	r.decisions.Add(d)
	r.history.Decision(d)
	r.demand.Decision(d)
}

func (r record) Outcome(o decision.Outcome) {
	r.decisions.Finish(o)
	r.history.Outcome(o)
}

// poolStates are the states of the pools.
type poolStates struct{ *parts }

// State implements demand.Pools.
func (p poolStates) State(model string) demand.State {
	s := demand.State{Waiting: p.standby.Waiting(model) + p.chooser.WaitingFor(model)}
	pool, ok := p.ranks.Registry.Snapshot().Pool(model)
	if !ok {
		return s
	}
	now := time.Now()
	for _, r := range pool.Replicas {
		for _, slot := range r.Slots {
			s.Running += p.ranks.Book.View(slot, now).InFlight
		}
	}
	return s
}

// forward passes calls on to the other routers; nil for a router alone.
func (p *parts) forward() *forward.Fleet {
	if p.peers == nil {
		return nil
	}
	return p.peers.Forward()
}

// background lists the parts with work of their own.
func (p *parts) background() []component {
	list := []component{
		{"registry", p.ranks.Registry},
		{"kvindex", p.ranks.Index},
		{"kvevents", p.ranks.Events},
		{"directory", p.directory},
		{"enginestats", p.ranks.Stats},
		{"load", p.ranks.Book},
		{"chooser", p.chooser},
		{"tokenizer", p.tokens},
		{"upstream", p.upstream},
		{"decisionlog", p.decisions},
		{"standby", p.standby}, {"placement", p.placement},
	}
	if p.peers != nil {
		list = append(list, component{"fleet", p.peers})
	}
	return list
}
