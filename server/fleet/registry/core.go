package registry

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// core is the state of a running registry: it joins the sources, the drains, the leases and the results of probes, and publishes
// snapshots of them. Only the goroutine of run touches it, one command after the other.
type core struct {
	settings  *settings
	log       *slog.Logger
	metrics   *metrics
	observer  Observer
	reporter  Reporter
	inbox     *inbox
	published *published
	probing   *probing
	probers   sync.WaitGroup

	origins origins
	leases  leases
	drains  drains
	entries map[replica.ID]*entry
	slots   slotPool

	changed     bool // a new snapshot is due
	restarts    []restart
	afterCommit []func()
}

// restart is a new engine process behind a replica, which the observer hears of after the snapshot.
type restart struct {
	entry *entry
	began time.Time
}

func newCore(s *settings, p *probing, in *inbox, out *published, params Params) *core {
	return &core{
		settings: s, log: p.log, metrics: p.metrics, observer: params.Observer, reporter: params.Reporter,
		inbox: in, published: out, probing: p,
		origins: origins{log: p.log, lists: map[string]map[replica.ID]Spec{sourceRegistered: {}}},
		leases:  leases{}, drains: drains{}, entries: map[replica.ID]*entry{},
	}
}

// run executes commands until ctx ends, and waits for the probers.
func (c *core) run(ctx context.Context) {
	defer c.probers.Wait()
	c.commit(ctx)
	expiry := time.NewTimer(time.Hour)
	defer expiry.Stop()
	for {
		expiry.Reset(c.leases.next())
		select {
		case <-ctx.Done():
			return
		case <-c.inbox.wake:
			for _, command := range c.inbox.take() {
				command(c)
			}
		case <-expiry.C:
			c.expire(time.Now())
		}
		c.commit(ctx)
	}
}

// list replaces the replicas that a source lists.
func (c *core) list(source string, specs []Spec) { c.origins.set(source, specs) }

// rankChange is a rank that comes or goes with the next snapshot.
type rankChange struct {
	entry *entry
	slots []replica.Slot
	first bool // goes before others come, because both bind one address
}

// commit brings the entries in line with the sources, publishes a snapshot when anything changed
// and notifies the other parts. New probers run until ctx ends.
func (c *core) commit(ctx context.Context) {
	var came, went []rankChange
	if c.origins.changed {
		came, went = c.reconcile(ctx)
		c.changed = true
	}
	for _, e := range c.entries {
		if e.reslot {
			e.reslot = false
			went = append(went, rankChange{e, e.slots, e.binds()})
			e.slots = c.slots.take(e.ranks())
			came = append(came, rankChange{entry: e, slots: e.slots})
			e.dirty = true
		}
		if e.dirty {
			e.dirty = false
			if e.rebuild(c.drains[e.spec.ID]) {
				c.metrics.Changes.Add(e.state)
			}
			c.changed = true
		}
	}
	if c.changed {
		c.changed = false
		c.announce(came, went)
	}
	for _, r := range c.restarts {
		c.observer.ReplicaRestarted(r.entry.view, r.began)
	}
	for _, f := range c.afterCommit {
		f()
	}
	c.restarts, c.afterCommit = nil, nil
}

// reconcile makes, drops and updates entries as the sources list them.
func (c *core) reconcile(ctx context.Context) (came, went []rankChange) {
	wanted := c.origins.join()
	for id, e := range c.entries {
		if _, stays := wanted[id]; !stays {
			went = append(went, rankChange{e, e.slots, e.binds()})
			e.prober.stop()
			delete(c.entries, id)
			c.log.Info("replica removed", "replica", id, "source", e.source)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(wanted)) { // in order, so that slots are the same each time
		want := wanted[id]
		e, known := c.entries[id]
		var err error
		if want.access, err = c.settings.keys.Load().of(want.spec, want.source == sourceRegistered); err != nil {
			c.log.Error("a replica's key or certificates cannot be read", "replica", id, "kept", known, "error", err)
			if known {
				want.access = e.access
			}
		}
		if known {
			reslot, reprobe := e.update(want)
			if reprobe {
				e.prober.stop()
				e.prober = c.probe(ctx, e)
			}
			if reslot {
				c.log.Info("replica registered again with changed metadata", "replica", id, "url", want.spec.URL)
			}
			continue
		}
		e = newEntry(want)
		e.slots = c.slots.take(e.ranks())
		if ends, leased := c.leases[id]; leased && want.source == sourceRegistered {
			e.vitals.lease(ends)
		}
		came = append(came, rankChange{entry: e, slots: e.slots})
		c.entries[id] = e
		e.prober = c.probe(ctx, e)
		c.log.Info("replica added", "replica", id, "source", want.source, "url", want.spec.URL)
	}
	return came, went
}

// announce publishes the entries as a snapshot, with the observer's calls before and after it.
func (c *core) announce(came, went []rankChange) {
	remove := func(change rankChange) {
		for _, slot := range change.slots {
			c.observer.RankRemoved(slot)
		}
	}
	for _, change := range went {
		if change.first {
			remove(change)
		}
	}
	for _, change := range came {
		for rank, slot := range change.slots {
			c.observer.RankAdded(slot, change.entry.view, rank)
		}
	}
	s := newSnapshot(c.entries, c.settings.now().Aliases)
	c.published.publish(s)
	for _, change := range went {
		if !change.first {
			remove(change)
		}
		c.slots.give(change.slots)
	}
	c.observer.FleetChanged(s)
}

// probe starts a prober for a replica.
func (c *core) probe(ctx context.Context, e *entry) *prober {
	ctx, cancel := context.WithCancel(ctx)
	p := newProber(c.probing, e.spec, e.access, &e.vitals.pulse, cancel)
	c.probers.Go(func() {
		p.run(ctx, func(res result) {
			c.inbox.put(func(c *core) {
				if e.prober == p && c.entries[e.spec.ID] == e {
					c.took(e, res)
				}
			})
		})
	})
	return p
}

// took applies the result of a probe.
func (c *core) took(e *entry, res result) {
	conf := &c.settings.now().Probe
	e.vitals.probed.Store(res.at.UnixNano())
	if res.err != nil {
		changed, down := e.health.failed(res, conf.Down)
		if down {
			c.log.Warn("replica is unhealthy", "replica", e.spec.ID, "error", res.err)
		}
		e.dirty = e.dirty || changed
		e.vitals.failures.Store(int64(e.health.downs))
		return
	}
	e.vitals.failures.Store(0)
	changed, reopened := e.health.succeeded()
	e.dirty = e.dirty || changed
	if reopened && e.life.began.IsZero() { // else its own report counts
		c.restarted(e, res.at)
	}
	if e.report.adopt(res) {
		e.dirty = true
	}
	if res.sources != nil {
		c.found(e, *res.sources)
	}
	if len(e.report.models) > 0 && e.health.rise(conf.Up) {
		e.dirty = true
		e.life.begin(res.at)
	}
}

// found applies where a replica reports that it publishes. Any change makes its ranks new ones, unless the settings say where it does:
// then a difference is only reported.
func (c *core) found(e *entry, list []replica.Events) {
	if slices.Equal(list, e.report.sources) {
		return
	}
	if e.spec.asks() {
		e.reslot, e.dirty = true, true
		if n := len(list); n > 0 && e.spec.ranksSet && n != e.spec.Ranks {
			c.log.Warn("the replica's number of ranks differs from the configured one", "replica", e.spec.ID, "configured", e.spec.Ranks, "reported", n)
		}
		c.log.Info("the replica reported where it publishes KV events", "replica", e.spec.ID, "ranks", len(list), "events", list)
	} else {
		warnUnlike(c.log, e.spec.ID, e.events(), list)
	}
	e.report.sources = list
}

// learn adds facts that another part found.
func (c *core) learn(id replica.ID, l Learned) {
	e := c.entries[id]
	if e == nil {
		return
	}
	e.dirty = true
	known := &e.report.learned
	if l.Blocks > 0 {
		known.Blocks = l.Blocks
	}
	if l.MaxBatchedTokens > 0 {
		known.MaxBatchedTokens = l.MaxBatchedTokens
	}
	if l.BlockSize <= 0 || l.BlockSize == known.BlockSize {
		return
	}
	if e.spec.BlockSize > 0 && e.spec.BlockSize != l.BlockSize {
		c.log.Error("the configured block size differs from the replica's", "replica", id,
			"configured", e.spec.BlockSize, "reported", l.BlockSize)
	}
	if known.BlockSize > 0 && e.spec.BlockSize == 0 {
		c.log.Warn("block size changed", "replica", id, "from", known.BlockSize, "to", l.BlockSize)
		e.reslot = true
	}
	known.BlockSize = l.BlockSize
}

// started notes when an engine began.
func (c *core) started(e *entry, began time.Time) {
	old := e.life.began
	e.life.began = began
	if !old.IsZero() && began.Sub(old).Abs() > sameStart {
		c.restarted(e, began)
	}
}

// restarted notes a new engine life.
func (c *core) restarted(e *entry, began time.Time) {
	if !e.life.renew() {
		return
	}
	e.dirty = true
	e.prober.forget()
	c.metrics.Restarts.Add(context.Background(), 1)
	c.log.Info("replica restarted", "replica", e.spec.ID, "life", e.life.number, "began", began)
	c.restarts = append(c.restarts, restart{e, began})
}
