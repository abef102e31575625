package fleet

import (
	"maps"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// poolNames names the pools of models. Models that share a replica are one pool, named after the first of them by name, so that routers
// with the same replicas name it alike.
type poolNames struct {
	registry *registry.Registry
	known    atomic.Pointer[namedPools]
}

type namedPools struct {
	of     *registry.Snapshot
	byName map[string]string
}

// of names the pool of a model.
func (n *poolNames) of(model string) string {
	s := n.registry.Snapshot()
	known := n.known.Load()
	if known == nil || known.of != s {
		known = &namedPools{s, namePools(s)}
		n.known.Store(known)
	}
	if name, ok := known.byName[model]; ok {
		return name
	}
	if pool, ok := s.Pool(model); ok { // base:adapter
		return known.byName[pool.Model]
	}
	return model
}

func namePools(s *registry.Snapshot) map[string]string {
	parent := map[string]string{}
	var root func(string) string
	root = func(name string) string {
		if above, ok := parent[name]; ok && above != name {
			parent[name] = root(above)
			return parent[name]
		}
		return name
	}
	join := func(a, b string) {
		a, b = root(a), root(b)
		parent[max(a, b)] = min(a, b)
	}
	first := map[replica.ID]string{}
	for _, pool := range s.Models() {
		join(pool.Model, pool.Model)
		for _, r := range pool.Replicas {
			if name, ok := first[r.ID]; ok {
				join(name, pool.Model)
			} else {
				first[r.ID] = pool.Model
			}
		}
	}
	names := maps.Clone(parent)
	for name := range names {
		names[name] = root(name)
	}
	return names
}
