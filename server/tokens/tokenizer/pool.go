package tokenizer

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/kvpilot/kvpilot/server/kit/cache"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/parity"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/remote"
)

// Params is what code passes.
type Params struct {
	Log    *slog.Logger
	Meter  metric.MeterProvider
	Tracer trace.Tracer
	// PlainSockets reads and writes with calls that the scheduler knows of (package socket).
	PlainSockets bool
	// Sender replaces the connections to the replicas; nil makes them.
	Sender remote.Sender
}

// Pool tokenizes.
type Pool struct {
	cfg     Config
	log     *slog.Logger
	tracer  trace.Tracer
	metrics *metrics
	remote  *remote.Pool
	keyer   keyer
	cache   *cache.Cache[entry]
	texts   *cache.Cache[string]
	bodies  *cache.Cache[cache.Key] // from the key of a body to that of its prompt
	flights flights
	models  sync.Map // pool name -> *model
	scratch sync.Pool
	turns   chan struct{} // one token per running background work
	queued  atomic.Int64  // waiting and running background work
	held    held

	leastWait time.Duration // for the ids of a prompt with an older beginning
}

// New makes a pool; it opens and starts nothing.
func New(cfg Config, params Params) *Pool {
	if cfg.CacheBytes < 0 {
		cfg.CacheBytes = unknownCache
	}
	p := &Pool{
		cfg: cfg, log: params.Log, tracer: params.Tracer,
		keyer:   keyer{seed: rand.Uint64()},
		held:    held{limit: cmp.Or(int64(cfg.HeldBytes), unknownHeld)},
		cache:   cache.New[entry](int64(cfg.CacheBytes)),
		texts:   cache.New[string](int64(cfg.CacheBytes) / 16),
		bodies:  cache.New[cache.Key](int64(cfg.CacheBytes) / 64),
		flights: flights{open: map[cache.Key]*flight{}},
		turns:   make(chan struct{}, max(1, cfg.Background)),
		scratch: sync.Pool{New: func() any { return new([]cache.Key) }},

		leastWait: leastWait,
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.tracer == nil {
		p.tracer = noop.NewTracerProvider().Tracer("")
	}
	p.remote = remote.New(cfg.Remote, remote.Params{Log: p.log, Meter: params.Meter, PlainSockets: params.PlainSockets, Sender: params.Sender})
	p.metrics = newMetrics(params.Meter, p.cache.Stats, p.held.now)
	return p
}

// Run probes and expires tokenizer endpoints until ctx ends, then ends what is under way.
func (p *Pool) Run(ctx context.Context) error {
	asking, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	done := make(chan error, 1)
	go func() { done <- p.remote.Run(asking) }()
	<-ctx.Done()
	p.flights.close() // first: nothing may ask the remote pool once it waits for its last question
	stop()
	return <-done
}

// Update puts a new cap on one question to a replica in force. What else is in next stays as it was.
func (p *Pool) Update(next Config) error {
	if err := next.Validate(); err != nil {
		return err
	}
	p.remote.SetTimeout(next.Remote.Timeout)
	return nil
}

// WaitIdle waits until nothing is under way in the background.
func (p *Pool) WaitIdle() { p.flights.wg.Wait() }

// CacheStats returns the figures of the cache.
func (p *Pool) CacheStats() cache.Stats { return p.cache.Stats() }

// model is what was learned about one model.
type model struct {
	name    string
	set     ModelConfig
	parity  *parity.Guard
	learned learned
	sizes   blockSizes
	// generation counts how often all that is cached of the model was dropped.
	generation atomic.Uint64

	mu    sync.Mutex
	ratio float64 // guarded by mu; tokens per byte of raw prompt
}

func (p *Pool) model(name string) *model {
	if m, ok := p.models.Load(name); ok {
		return m.(*model)
	}
	fresh := &model{name: name, set: p.cfg.Models[name], ratio: 0.25, parity: parity.New(name)}
	m, known := p.models.LoadOrStore(name, fresh)
	if !known {
		p.metrics.known(name)
	}
	return m.(*model)
}

// learnRatio notes that size bytes of prompt became n tokens.
func (m *model) learnRatio(size, n int) {
	if size < 64 || n == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ratio += (float64(n)/float64(size) - m.ratio) * 0.05
}

// estimate guesses the tokens of size bytes.
func (m *model) estimate(size int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int(float64(size)*m.ratio) + 1
}
