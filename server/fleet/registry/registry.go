package registry

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Registry knows the replicas. New makes one; Run runs it.
type Registry struct {
	settings  *settings
	log       *slog.Logger
	metrics   *metrics
	sources   []configured
	probing   *probing
	inbox     *inbox
	published *published
	core      *core
	done      chan struct{} // closed when Run has ended
}

// New returns a registry without replicas. The replicas of the configuration, which must be valid, appear when Run begins.
func New(config Config, params Params) *Registry {
	params = params.or()
	r := &Registry{
		settings: newSettings(config, params.Env), log: params.Scope.Log(),
		inbox: newInbox(), published: newPublished(), done: make(chan struct{}),
	}
	in := &intake{settings: r.settings, inbox: r.inbox, log: r.log}
	r.metrics = newMetrics(params.Scope.Meters(), r.published, &in.left)
	in.metrics = r.metrics
	r.sources = in.sources(params.Resolver)
	r.probing = &probing{
		settings: r.settings, client: params.Client, log: r.log, metrics: r.metrics,
		turns: make(chan struct{}, config.Probe.Concurrency), doubting: make(chan struct{}, config.Probe.Concurrency),
	}
	r.core = newCore(r.settings, r.probing, r.inbox, r.published, params)
	return r
}

// Snapshot returns the present snapshot. It is never nil.
func (r *Registry) Snapshot() *Snapshot { return r.published.now() }

// Run discovers, probes and publishes until ctx ends. It may be called once.
func (r *Registry) Run(ctx context.Context) error {
	defer close(r.done)
	static, err := r.settings.begin()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	r.core.list(sourceStatic, static)
	group.Go(func() error { r.core.run(ctx); return nil })
	group.Go(func() error { unansweredWatch{r.published, r.log}.run(ctx); return nil })
	for _, s := range r.sources {
		group.Go(func() error { return s.source.watch(ctx) })
	}
	err = group.Wait()
	r.probing.client.CloseIdleConnections()
	return err
}

// Update puts new settings in force: the fixed list, the aliases, how the router shows itself, how health is watched, and the
// bounds of registration. The other fields of next have no effect. When it returns an error, nothing has changed.
func (r *Registry) Update(ctx context.Context, next Config) error {
	config, keys, static, err := r.settings.prepare(next)
	if err != nil {
		return err
	}
	return r.do(ctx, func(c *core) error {
		c.settings.replace(config, keys)
		c.list(sourceStatic, static)
		return nil
	})
}

// Check returns the error that Update would return, and changes nothing.
func (r *Registry) Check(next Config) error {
	_, _, _, err := r.settings.prepare(next)
	return err
}

// AwaitReports blocks until every replica has answered or failed a probe and returns nil, or until ctx ends and returns its cause.
func (r *Registry) AwaitReports(ctx context.Context) error {
	for {
		changed := r.published.next()
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
	r.metrics.Passive.Add(context.Background(), 1)
	r.log.Debug("replica failed a request", "replica", id, "error", err)
	s.probers[id].wake()
}

// Learned has the facts about an engine that other parts find. Zero fields are not known.
type Learned struct {
	BlockSize        int
	Blocks           int
	MaxBatchedTokens int
}

// Learn adds facts about a replica that another part found. A block size that differs from the one
// known before makes the replica's ranks new ones: blocks cached under the old size are worthless.
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
		if e := c.entries[id]; e != nil && e.life.began.IsZero() && noticed.Sub(e.life.seen) > sameRestart {
			c.restarted(e, noticed)
		}
	})
}

func (l Learned) newsFor(r *replica.Replica) bool {
	return l.BlockSize > 0 && l.BlockSize != r.BlockSize || l.Blocks > 0 && l.Blocks != r.Blocks ||
		l.MaxBatchedTokens > 0 && l.MaxBatchedTokens != r.MaxBatchedTokens
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
