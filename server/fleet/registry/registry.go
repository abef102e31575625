package registry

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Registry knows the replicas. New makes one; Run runs it.
type Registry struct {
	left    leftOut
	conf    atomic.Pointer[Config]
	keys    atomic.Pointer[keyring]
	params  Params
	log     *slog.Logger
	metrics *metrics

	snapshot atomic.Pointer[Snapshot]
	inbox    inbox
	done     chan struct{} // closed when Run has ended
	probing  chan struct{} // one token per probe under way
	doubting chan struct{} // the same for replicas with a failed last probe

	changedMu sync.Mutex
	changed   chan struct{} // closed and replaced with each snapshot; guarded by changedMu
}

// New returns a registry without replicas. Those of the configuration, which must be valid, appear when Run begins.
func New(config Config, params Params) *Registry {
	if params.Log == nil {
		params.Log = slog.New(slog.DiscardHandler)
	}
	if params.Client == nil {
		params.Client = newClient()
	}
	if params.Resolver == nil {
		params.Resolver = net.DefaultResolver
	}
	r := &Registry{
		params: params, log: params.Log,
		inbox: newInbox(), done: make(chan struct{}),
		probing:  make(chan struct{}, config.Probe.Concurrency),
		doubting: make(chan struct{}, config.Probe.Concurrency),
		changed:  make(chan struct{}),
	}
	r.conf.Store(&config)
	r.keys.Store(newKeyring(&config, params.Lookup, nil))
	r.snapshot.Store(newSnapshot(nil, nil))
	r.metrics = newMetrics(params.Meter, r)
	return r
}

// Snapshot returns what is known now. It is never nil.
func (r *Registry) Snapshot() *Snapshot { return r.snapshot.Load() }

// Run discovers, probes and publishes until ctx ends. It may be called once.
func (r *Registry) Run(ctx context.Context) error {
	defer close(r.done)
	if err := r.keys.Load().check(r.config()); err != nil {
		return err
	}
	static, err := staticSpecs(r.config(), r.keys.Load())
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	c := newCore(ctx, r)
	c.setSource(sourceStatic, static)
	group.Go(func() error { c.run(ctx); return nil })
	group.Go(func() error { r.watchUnanswered(ctx); return nil })
	if r.config().File != "" {
		group.Go(func() error { return r.watchFile(ctx, r.config().File) })
	}
	for _, d := range r.config().DNS {
		group.Go(func() error { return r.watchDNS(ctx, d) })
	}
	for _, k := range r.config().Kubernetes {
		group.Go(func() error { return r.watchKubernetes(ctx, k) })
	}
	err = group.Wait()
	c.probers.Wait()
	r.params.Client.CloseIdleConnections()
	return err
}

// config is what is in force.
func (r *Registry) config() *Config { return r.conf.Load() }

// Update puts new settings in force: the fixed list, the aliases, how the router shows itself, how health is watched, and the
// bounds of registration. What else is in next stays as it was. When it returns an error, nothing has changed.
func (r *Registry) Update(ctx context.Context, next Config) error {
	keys, static, err := r.prepare(next)
	if err != nil {
		return err
	}
	merged := *r.config()
	next.Probe.Concurrency, next.Registration.Enabled = merged.Probe.Concurrency, merged.Registration.Enabled
	merged.Replicas, merged.Aliases, merged.Access, merged.Pools = next.Replicas, next.Aliases, next.Access, next.Pools
	merged.Probe, merged.Registration = next.Probe, next.Registration
	return r.do(ctx, func(c *core) error {
		r.conf.Store(&merged)
		r.keys.Store(keys)
		c.setSource(sourceStatic, static)
		return nil
	})
}

// Check returns the error that Update would return, and changes nothing.
func (r *Registry) Check(next Config) error {
	_, _, err := r.prepare(next)
	return err
}

// prepare reads what next names.
func (r *Registry) prepare(next Config) (*keyring, []Spec, error) {
	if err := next.Validate(); err != nil {
		return nil, nil, err
	}
	keys := newKeyring(&next, r.params.Lookup, r.keys.Load())
	if err := keys.check(&next); err != nil {
		return nil, nil, err
	}
	static, err := staticSpecs(&Config{Replicas: next.Replicas, Events: r.config().Events}, keys)
	return keys, static, err
}

func staticSpecs(c *Config, keys *keyring) ([]Spec, error) {
	specs := make([]Spec, 0, len(c.Replicas))
	for _, s := range c.Replicas {
		s, err := s.complete(c.Events)
		if err != nil {
			return nil, err
		}
		if _, err = keys.of(s, false); err != nil {
			return nil, err
		}
		specs = append(specs, s)
	}
	return specs, nil
}

// publish makes s the snapshot and wakes the watchers.
func (r *Registry) publish(s *Snapshot) {
	r.snapshot.Store(s)
	r.changedMu.Lock()
	defer r.changedMu.Unlock()
	close(r.changed)
	r.changed = make(chan struct{})
}

// next returns a channel that is closed with the next snapshot.
func (r *Registry) next() <-chan struct{} {
	r.changedMu.Lock()
	defer r.changedMu.Unlock()
	return r.changed
}

// AwaitReports blocks until every replica has answered or failed a probe and returns nil, or until ctx ends and returns its cause.
func (r *Registry) AwaitReports(ctx context.Context) error {
	for {
		changed := r.next() // before the snapshot, so that none is missed
		if r.Snapshot().reported() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ReportFailure notes that a request to a replica failed in a way that is the replica's fault. It
// is probed at once.
func (r *Registry) ReportFailure(id replica.ID, err error) {
	s := r.Snapshot()
	rep, ok := s.byID[id]
	if !ok || rep.State == replica.StateUnhealthy {
		return
	}
	r.metrics.passive.Add(context.Background(), 1)
	r.log.Debug("replica failed a request", "replica", id, "error", err)
	s.probers[id].wake()
}

// Learned is what other parts find out about an engine. Zero fields are not known.
type Learned struct {
	BlockSize        int
	Blocks           int
	MaxBatchedTokens int
}

// Learn adds what another part found out about a replica. A block size that differs from the one
// known before makes the replica's ranks new ones: what was cached under the old size is worthless.
func (r *Registry) Learn(id replica.ID, l Learned) {
	rep, ok := r.Snapshot().Replica(id)
	if !ok || !l.newsFor(rep) {
		return
	}
	r.inbox.put(func(c *core) { c.learn(id, l) })
}

// Refresh has a replica asked at once for all that it reports about itself.
func (r *Registry) Refresh(id replica.ID) {
	r.inbox.put(func(c *core) {
		if e := c.entries[id]; e != nil {
			e.prober.forget()
			e.prober.wake()
		}
	})
}

// NoteStart notes when the engine process behind a replica began. When that is another moment
// than before, the engine restarted. The start that an engine reports is trusted: a port that was
// closed for a while is then no restart by itself.
func (r *Registry) NoteStart(id replica.ID, began time.Time) {
	r.inbox.put(func(c *core) {
		if e := c.entries[id]; e != nil {
			c.started(e, began)
		}
	})
}

// NoteRestart notes that the engine behind a replica turned out to be a new process just now. It is
// for engines with an unknown start; the same restart may be noted more than once.
func (r *Registry) NoteRestart(id replica.ID, noticed time.Time) {
	r.inbox.put(func(c *core) {
		if e := c.entries[id]; e != nil && e.began.IsZero() && noticed.Sub(e.lifeSeen) > sameRestart {
			c.restarted(e, noticed)
		}
	})
}

func (l Learned) newsFor(r *replica.Replica) bool {
	return l.BlockSize > 0 && l.BlockSize != r.BlockSize || l.Blocks > 0 && l.Blocks != r.Blocks ||
		l.MaxBatchedTokens > 0 && l.MaxBatchedTokens != r.MaxBatchedTokens
}

// inbox is the queue of commands for the core. It holds at most one for each caller that waits and
// a few for each replica.
type inbox struct {
	mu       sync.Mutex
	commands []func(*core) // guarded by mu
	wake     chan struct{}
}

func newInbox() inbox { return inbox{wake: make(chan struct{}, 1)} }

func (b *inbox) put(command func(*core)) {
	b.mu.Lock()
	b.commands = append(b.commands, command)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default: // it is awake already
	}
}

func (b *inbox) take() []func(*core) {
	b.mu.Lock()
	defer b.mu.Unlock()
	commands := b.commands
	b.commands = nil
	return commands
}

// do runs command in the core and returns its error once the snapshot shows what it did.
func (r *Registry) do(ctx context.Context, command func(*core) error) error {
	answer := make(chan error, 1)
	r.inbox.put(func(c *core) {
		if ctx.Err() != nil {
			return // the caller has left
		}
		err := command(c)
		c.afterCommit = append(c.afterCommit, func() { answer <- err })
	})
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("registry: %w", ctx.Err())
	case <-r.done:
		return ErrClosed
	}
}
