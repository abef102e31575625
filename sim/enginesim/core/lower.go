package core

import (
	"errors"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

// Lower is the KV cache below the GPU, as with vLLM's OffloadingConnector. The zero value is none.
type Lower struct {
	// Host is a rank's own host memory, Store a store that replicas share; their Blocks are 0 for none.
	Host, Store LowerTier
	// Shared is the store itself. NewStore makes it; nil for none.
	Shared *enginemodel.Lower
	// SelfDescribing has the events of these tiers carry tokens and parents (self_describing_kv_events). Otherwise they name blocks only.
	SelfDescribing bool
}

// LowerTier is one tier.
type LowerTier struct {
	Blocks int
	// Start and PerToken are the time of a load.
	Start, PerToken time.Duration
}

// defaultLower has the times of four GPUs with a PCIe 4.0 bus of 16 lanes each, and of a store at a fifth of that rate.
func defaultLower() Lower {
	return Lower{Host: LowerTier{Start: 5 * time.Millisecond, PerToken: 4 * time.Microsecond}, Store: LowerTier{Start: 20 * time.Millisecond, PerToken: 20 * time.Microsecond}}
}

func (l *Lower) validate() error {
	for _, t := range []LowerTier{l.Host, l.Store} {
		if t.Blocks < 0 || t.Start < 0 || t.PerToken < 0 {
			return errors.New("sizes of tiers below the GPU and times of their loads must not be negative")
		}
	}
	return nil
}

// of makes the tier; nil for none.
func (t *LowerTier) of(tier kvblock.Tier, block int) *enginemodel.Lower {
	if t.Blocks == 0 {
		return nil
	}
	l := enginemodel.NewLower(tier, t.Blocks)
	l.Start, l.PerBlock = t.Start.Seconds(), t.PerToken.Seconds()*float64(block)
	return l
}

// NewStore makes the store that all ranks with this configuration share; nil for none. Ranks find each other's blocks when their seeds are equal.
func NewStore(c *Config) *enginemodel.Lower { return c.Lower.Store.of(kvblock.TierDisk, c.BlockSize) }

// addTiers gives the machine its tiers.
func addTiers(c *Core) {
	if !c.cfg.PrefixCaching {
		return
	}
	for _, l := range []*enginemodel.Lower{c.cfg.Lower.Host.of(kvblock.TierCPU, c.cfg.BlockSize), c.cfg.Lower.Shared} {
		if l != nil {
			enginemodel.AddTiers(c.machine, (*recorder)(c), l)
		}
	}
}

// loads are the loads from tiers below the GPU that are under way.
type loads struct {
	running map[*enginemodel.Sequence]*time.Timer
	until   time.Time // when the last one ends: they share one bus
	kept    uint64    // blocks put into host memory so far
}

// beginLoads begins the loads of a plan; c.mu is held.
func beginLoads(c *Core, list []enginemodel.Load) {
	for _, l := range list {
		now := time.Now()
		if c.loads.until.Before(now) {
			c.loads.until = now
		}
		c.loads.until = c.loads.until.Add(time.Duration(l.Seconds * float64(time.Second)))
		if c.loads.running == nil {
			c.loads.running = map[*enginemodel.Sequence]*time.Timer{}
		}
		c.loads.running[l.Sequence] = time.AfterFunc(c.loads.until.Sub(now), func() {
			c.mu.Lock()
			delete(c.loads.running, l.Sequence)
			c.machine.Arrive(l.Sequence)
			c.mu.Unlock()
			c.nudge()
		})
	}
}

// drop ends the load of a sequence, if it has one under way.
func (l *loads) drop(s *enginemodel.Sequence) {
	if timer := l.running[s]; timer != nil {
		timer.Stop()
		delete(l.running, s)
	}
}

// dropAll ends the loads of an engine that stops, and returns the sequences that waited for them.
func (l *loads) dropAll() (left []*enginemodel.Sequence) {
	for s, timer := range l.running {
		timer.Stop()
		left = append(left, s)
	}
	clear(l.running)
	return left
}

// Kept implements enginemodel.LowerSink. The store is remote to every engine.
func (r *recorder) Kept(tier kvblock.Tier, m *enginemodel.Sequence, from, to int) {
	if tier == kvblock.TierCPU {
		r.loads.kept += uint64(to - from)
	}
	ev := Event{Kind: Stored, Tier: tier}
	if r.cfg.Lower.SelfDescribing {
		ev = r.describe(m, from, to)
		ev.Tier = tier
	} else {
		for _, k := range m.Keys[from:to] {
			ev.Hashes = append(ev.Hashes, digestOf(k))
		}
	}
	r.events = append(r.events, ev)
}

// Dropped implements enginemodel.LowerSink.
func (r *recorder) Dropped(tier kvblock.Tier, key blockhash.Hash) {
	r.events = append(r.events, Event{Kind: Removed, Tier: tier, Hashes: []Digest{digestOf(key)}})
}
