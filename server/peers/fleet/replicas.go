package fleet

import (
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
)

// replicas is this router's view of the replicas, as frontend and decider need it.
type replicas struct {
	registry *registry.Registry
	breaker  *breaker.Breaker
	pools    *poolNames
}

func (r replicas) Pool(model string) string { return r.pools.of(model) }

func (r replicas) Serving(model, served string) []*replica.Replica {
	return r.registry.Snapshot().Serving(model, served)
}

func (r replicas) RankOf(slot replica.Slot) (replica.Rank, bool) {
	found, rank, ok := r.registry.Snapshot().BySlot(slot)
	if !ok {
		return replica.Rank{}, false
	}
	return replica.Rank{Replica: found.ID, Index: rank}, true
}

func (r replicas) Broken() []replica.ID { return r.breaker.Opened() }

// Missing lists the replicas with a rank whose events come and whose cache is not known exactly, although no replay runs.
func (f *Fleet) Missing() (list []replica.ID) {
	now := f.replicas.registry.Snapshot()
	for _, s := range f.feeds.Statuses() {
		if s.Endpoint == "" || !s.Connected || s.Recovering || s.State == kvblock.FeedExact {
			continue
		}
		if r, _, ok := now.BySlot(s.Slot); ok && !slices.Contains(list, r.ID) {
			list = append(list, r.ID)
		}
	}
	return list
}
