package registry

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// The names of sources. DNS sources are named "dns:" and the name looked up, Kubernetes sources
// "kubernetes:", the namespace, "/" and the Service.
const (
	sourceStatic     = "static"
	sourceFile       = "file"
	sourceDNS        = "dns:"
	sourceKubernetes = "kubernetes"
	sourceRegistered = "registered"
)

// core is the state of a running registry. Only the goroutine of run touches it.
type core struct {
	r       *Registry
	ctx     context.Context //nolint:containedctx // the life of run and its probers, not a request's
	probers sync.WaitGroup

	sources map[string]map[replica.ID]Spec
	leases  map[replica.ID]time.Time // of the registered ones
	drains  map[replica.ID]*Drain    // of operators
	entries map[replica.ID]*entry
	slots   slotPool
	doubled map[replica.ID]string // the source with an ignored listing of an id

	changed     bool     // a new snapshot is due
	membership  bool     // sources changed
	restarts    []func() // callbacks due after the snapshot
	afterCommit []func()
}

// maxDrains bounds the drains remembered for replicas that are not there.
const maxDrains = 10_000

func newCore(ctx context.Context, r *Registry) *core {
	return &core{
		r: r, ctx: ctx,
		sources: map[string]map[replica.ID]Spec{}, leases: map[replica.ID]time.Time{},
		drains: map[replica.ID]*Drain{}, entries: map[replica.ID]*entry{},
	}
}

func (c *core) run(ctx context.Context) {
	c.commit()
	expiry := time.NewTimer(time.Hour)
	defer expiry.Stop()
	for {
		expiry.Reset(c.nextExpiry())
		select {
		case <-ctx.Done():
			return
		case <-c.r.inbox.wake:
			for _, command := range c.r.inbox.take() {
				command(c)
			}
		case <-expiry.C:
			c.expire(time.Now())
		}
		c.commit()
	}
}

// setSource replaces what a source lists.
func (c *core) setSource(name string, specs []Spec) {
	listed := make(map[replica.ID]Spec, len(specs))
	for _, s := range specs {
		listed[s.ID] = s
	}
	c.sources[name] = listed
	c.membership = true
}

// sourceOrder ranks the sources: where two list one id, the lower counts.
func sourceOrder(name string) int {
	switch {
	case name == sourceStatic:
		return 0
	case name == sourceFile:
		return 1
	case strings.HasPrefix(name, sourceDNS):
		return 2
	case strings.HasPrefix(name, sourceKubernetes):
		return 3
	}
	return 4
}

// wanted joins the sources.
func (c *core) wanted() map[replica.ID]listing {
	names := slices.SortedFunc(maps.Keys(c.sources), func(a, b string) int {
		if d := sourceOrder(a) - sourceOrder(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	all, doubled := map[replica.ID]listing{}, map[replica.ID]string{}
	for _, name := range names {
		for id, spec := range c.sources[name] {
			first, taken := all[id]
			if !taken {
				all[id] = listing{spec: spec, source: name}
				continue
			}
			doubled[id] = name
			if c.doubled[id] != name { // logged once, not with every change of the fleet
				c.r.log.Warn("replica listed twice", "replica", id, "used", first.source, "ignored", name)
			}
		}
	}
	c.doubled = doubled
	return all
}

type listing struct {
	spec   Spec
	source string
	access credentials
}

// rankChange is a rank that comes or goes with the next snapshot.
type rankChange struct {
	entry *entry
	slots []replica.Slot
	first bool // goes before others come, because both bind one address
}

// commit brings the entries in line with the sources, publishes a snapshot when anything changed
// and notifies the other parts.
func (c *core) commit() {
	var came, went []rankChange
	if c.membership {
		came, went = c.reconcile()
		c.membership = false
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
			if e.rebuild(c.drains[e.id]) {
				c.r.metrics.stateChanged(c.ctx, e.state)
			}
			c.changed = true
		}
	}
	if c.changed {
		c.changed = false
		c.announce(came, went)
	}
	for _, f := range slices.Concat(c.restarts, c.afterCommit) {
		f()
	}
	c.restarts, c.afterCommit = nil, nil
}

// reconcile makes, drops and updates entries as the sources list them.
func (c *core) reconcile() (came, went []rankChange) {
	wanted := c.wanted()
	for id, e := range c.entries {
		if _, stays := wanted[id]; !stays {
			went = append(went, rankChange{e, e.slots, e.binds()})
			e.prober.stop()
			delete(c.entries, id)
			c.r.log.Info("replica removed", "replica", id, "source", e.source)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(wanted)) { // in order, so that slots are the same each time
		want := wanted[id]
		e, known := c.entries[id]
		var err error
		if want.access, err = c.r.keys.Load().of(want.spec, want.source == sourceRegistered); err != nil {
			c.r.log.Error("a replica's key or certificates cannot be read", "replica", id, "kept", known, "error", err)
			if known {
				want.access = e.access
			}
		}
		if known {
			e.update(want, c)
			continue
		}
		e = newEntry(id, want)
		e.slots = c.slots.take(e.ranks())
		if ends, leased := c.leases[id]; leased && want.source == sourceRegistered {
			e.vitals.lease(ends)
		}
		came = append(came, rankChange{entry: e, slots: e.slots})
		c.entries[id] = e
		e.prober = c.startProber(e)
		c.r.log.Info("replica added", "replica", id, "source", want.source, "url", want.spec.URL)
	}
	return came, went
}

// announce publishes the entries as a snapshot, with the callbacks before and after it.
func (c *core) announce(came, went []rankChange) {
	p := &c.r.params
	remove := func(change rankChange) {
		for _, slot := range change.slots {
			if p.OnRankRemoved != nil {
				p.OnRankRemoved(slot)
			}
		}
	}
	for _, change := range went {
		if change.first {
			remove(change)
		}
	}
	for _, change := range came {
		for rank, slot := range change.slots {
			if p.OnRankAdded != nil {
				p.OnRankAdded(slot, change.entry.view, rank)
			}
		}
	}
	s := newSnapshot(c.entries, c.r.config().Aliases)
	c.r.publish(s)
	for _, change := range went {
		if !change.first {
			remove(change)
		}
		c.slots.give(change.slots)
	}
	if p.OnChanged != nil {
		p.OnChanged(s)
	}
}

// learn adds what another part found out.
func (c *core) learn(id replica.ID, l Learned) {
	e := c.entries[id]
	if e == nil {
		return
	}
	e.dirty = true
	if l.Blocks > 0 {
		e.learned.Blocks = l.Blocks
	}
	if l.MaxBatchedTokens > 0 {
		e.learned.MaxBatchedTokens = l.MaxBatchedTokens
	}
	if l.BlockSize <= 0 || l.BlockSize == e.learned.BlockSize {
		return
	}
	if e.spec.BlockSize > 0 && e.spec.BlockSize != l.BlockSize {
		c.r.log.Error("the configured block size differs from the replica's", "replica", id,
			"configured", e.spec.BlockSize, "reported", l.BlockSize)
	}
	if e.learned.BlockSize > 0 && e.spec.BlockSize == 0 {
		c.r.log.Warn("block size changed", "replica", id, "from", e.learned.BlockSize, "to", l.BlockSize)
		e.reslot = true
	}
	e.learned.BlockSize = l.BlockSize
}

const (
	// sameStart is how far apart two readings of one engine's start may be.
	sameStart = 3 * time.Second
	// sameRestart is how far apart two signs of one restart may be seen.
	sameRestart = 10 * time.Second
)

// started notes when an engine began.
func (c *core) started(e *entry, began time.Time) {
	old := e.began
	e.began = began
	if !old.IsZero() && began.Sub(old).Abs() > sameStart {
		c.restarted(e, began)
	}
}

// restarted notes a new engine life.
func (c *core) restarted(e *entry, began time.Time) {
	if e.life == 0 {
		return
	}
	e.life++
	e.lifeSeen = time.Now()
	e.dirty = true
	e.prober.forget()
	c.r.metrics.restarts.Add(c.ctx, 1)
	c.r.log.Info("replica restarted", "replica", e.id, "life", e.life, "began", began)
	if tell := c.r.params.OnRestarted; tell != nil {
		c.restarts = append(c.restarts, func() { tell(e.view, began) })
	}
}
