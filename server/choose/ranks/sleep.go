package ranks

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
)

// Sleep is the deepest sleep of the replica's ranks by their engines' last fresh metrics.
func (r *Ranks) Sleep(of *replica.Replica) (deepest enginestats.Sleep) {
	now := time.Now()
	for _, slot := range of.Slots {
		if s := r.Stats.Last(slot); s != nil && s.Fresh(now) {
			deepest = max(deepest, s.Sleep)
		}
	}
	return deepest
}

// Serving implements the chooser's Pools.
func (r *Ranks) Serving(model, served string) []*replica.Replica {
	return r.Registry.Snapshot().Serving(model, served)
}

// Reread requests fresh metrics of the replica's engine.
func (r *Ranks) Reread(of *replica.Replica) {
	for _, slot := range of.Slots {
		r.Stats.Ask(slot)
	}
}
