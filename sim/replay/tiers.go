package replay

import (
	"errors"
	"fmt"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

// Tiers are the tiers of KV memory below the GPU: host memory of each replica, and one store that all share. The zero value has none. Copies to them take
// no time; loads of one replica follow each other.
type Tiers struct {
	Host, Store Tier
	// Unknown keeps the tiers' events from the router.
	Unknown bool
}

// Tier is one of them.
type Tier struct {
	// Tokens is its size; 0 is none.
	Tokens int
	// Start passes before the first token of a load moves, PerToken with each token, in seconds.
	Start, PerToken float64
}

// DefaultTiers have no size and the times of loads that the profile 70b has on four GPUs with a PCIe 4.0 bus of 16 lanes each (25 GB/s), and of a
// store at a fifth of that rate.
func DefaultTiers() Tiers {
	return Tiers{Host: Tier{Start: 0.005, PerToken: 4e-6}, Store: Tier{Start: 0.02, PerToken: 20e-6}}
}

// check reports tiers that cannot be.
func (t *Tiers) check(block int) error {
	var errs []error
	for name, one := range map[string]Tier{"host memory": t.Host, "store": t.Store} {
		if one.Tokens < 0 || one.Tokens > 0 && one.Tokens < block {
			errs = append(errs, fmt.Errorf("%s of %d tokens: must be 0, or at least a block of %d", name, one.Tokens, block))
		}
		if one.Start < 0 || one.PerToken < 0 {
			errs = append(errs, fmt.Errorf("the times of loads from %s must not be negative", name))
		}
	}
	return errors.Join(errs...)
}

// lower makes the tier; nil for none.
func (t *Tier) lower(tier kvblock.Tier, block int) *enginemodel.Lower {
	if t.Tokens == 0 {
		return nil
	}
	l := enginemodel.NewLower(tier, t.Tokens/block)
	l.Start, l.PerBlock = t.Start, t.PerToken*float64(block)
	return l
}

// below are the tiers of a run.
type below struct {
	Tiers
	block int
	store *enginemodel.Lower // nil: none
}

func (t Tiers) below(block int) below {
	return below{Tiers: t, block: block, store: t.Store.lower(kvblock.TierDisk, block)}
}

// addTo gives an engine, which has just started, its tiers.
func (b *below) addTo(e *engine) {
	if host := b.Host.lower(kvblock.TierCPU, b.block); host != nil {
		enginemodel.AddTiers(e.machine, e, host)
	}
	if b.store != nil {
		enginemodel.AddTiers(e.machine, e, b.store)
	}
}

// beginLoads begins the loads that an engine's plan has begun. They follow each other on the engine's bus.
func beginLoads(s *sim, e *engine) {
	for _, l := range e.step.Loads {
		e.loaded = max(s.now, e.loaded) + l.Seconds
		s.after(e.loaded-s.now, func() {
			s.catchUp(e)
			e.machine.Arrive(l.Sequence)
			s.publish(e)
			splits{s}.replan(e)
		})
	}
	e.step.Loads = e.step.Loads[:0]
}
