package tokenizer

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/cache"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/remote"
)

// Params has the arguments of the code.
type Params struct {
	Scope scope.Scope
	// PlainSockets reads and writes with calls that the scheduler knows of (package socket).
	PlainSockets bool
	// Sender replaces the connections to the replicas; nil makes them.
	Sender remote.Sender
}

// Pool tokenizes.
type Pool struct {
	cfg        Config
	metrics    *metrics
	models     *models
	mem        *memory
	asker      asker
	flights    *flights
	background *background
	completer  *completer
	scratch    sync.Pool
	held       held
	*guard

	leastWait time.Duration // for the ids of a prompt with an older beginning
}

// New makes a pool; it opens and starts nothing.
func New(cfg Config, params Params) *Pool {
	if cfg.CacheBytes < 0 {
		cfg.CacheBytes = unknownCache
	}
	p := &Pool{
		cfg:     cfg,
		held:    held{limit: cmp.Or(int64(cfg.HeldBytes), unknownHeld)},
		flights: &flights{open: map[cache.Key]*flight{}},
		scratch: sync.Pool{New: func() any { return new([]cache.Key) }},
		mem: &memory{
			keyer:   keyer{seed: rand.Uint64()},
			prompts: cache.New[entry](int64(cfg.CacheBytes)),
			texts:   cache.New[string](int64(cfg.CacheBytes) / 16),
			bodies:  cache.New[cache.Key](int64(cfg.CacheBytes) / 64),
		},
		asker: asker{
			remote: remote.New(cfg.Remote, remote.Params{Scope: params.Scope, PlainSockets: params.PlainSockets, Sender: params.Sender}),
			tracer: params.Scope.Tracer("server/tokens/tokenizer"),
		},
		leastWait: leastWait,
	}
	p.metrics = newMetrics(params.Scope.Meters(), p.mem.prompts.Stats, p.held.now)
	p.models = &models{cfg: &p.cfg, metrics: p.metrics}
	p.background = newBackground(cfg.Background, p.flights, p.metrics)
	p.completer = &completer{cfg: &p.cfg, log: params.Scope.Log(), metrics: p.metrics, mem: p.mem, asker: p.asker, background: p.background}
	p.guard = &guard{log: params.Scope.Log(), metrics: p.metrics, mem: p.mem, models: p.models}
	return p
}

// Run probes and expires tokenizer endpoints until ctx ends, then ends running work.
func (p *Pool) Run(ctx context.Context) error {
	asking, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	done := make(chan error, 1)
	go func() { done <- p.asker.remote.Run(asking) }()
	<-ctx.Done()
	p.flights.close() // first: nothing may ask the remote pool once it waits for its last question
	stop()
	return <-done
}

// Update puts a new cap on one question to a replica in force. The other fields of next have no effect.
func (p *Pool) Update(next Config) error {
	if err := next.Validate(); err != nil {
		return err
	}
	p.asker.remote.SetTimeout(next.Remote.Timeout)
	return nil
}

// WaitIdle waits until nothing is under way in the background.
func (p *Pool) WaitIdle() { p.flights.wg.Wait() }

// CacheStats returns the figures of the cache.
func (p *Pool) CacheStats() cache.Stats { return p.mem.prompts.Stats() }
