package placement

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// leastUses is how many requests in a minute are worth a further replica.
const leastUses = 10

// key names an adapter on a replica.
type key struct {
	replica replica.ID
	adapter string
}

// step is a change of one replica.
type step struct {
	on            *replica.Replica
	adapter, path string
	load          bool
}

// group is a base model's ready replicas with their adapters.
type group struct {
	replicas []*replica.Replica
	adapters []listed
}

// listed is an adapter with the replicas that have it.
type listed struct {
	name, path string
	on         []*replica.Replica
	uses       float64
	coming     int // replicas that load it now
}

// groups divides the ready replicas by the base models of their adapters. uses has the requests of the last minute by adapter.
func groups(s *registry.Snapshot, uses map[string]float64) []group {
	var list []group
	bases := map[string]int{}
	for _, pool := range s.Models() {
		if pool.Adapter == "" || pool.Model != pool.Adapter || pool.Entry.Parent == "" {
			continue
		}
		base, ok := s.Pool(pool.Entry.Parent)
		if !ok {
			continue
		}
		at, known := bases[base.Served]
		if !known {
			at = len(list)
			bases[base.Served] = at
			list = append(list, group{replicas: ready(base.Replicas)})
		}
		a := listed{name: pool.Adapter, uses: uses[pool.Adapter]}
		for _, r := range list[at].replicas {
			if m, ok := r.Serves(a.name); ok && m.Parent != "" {
				a.on, a.path = append(a.on, r), cmp.Or(a.path, m.Root)
			}
		}
		if len(a.on) > 0 && a.path != "" {
			list[at].adapters = append(list[at].adapters, a)
		}
	}
	return list
}

// ready are the replicas that take requests, in the order of their ids.
func ready(all []*replica.Replica) []*replica.Replica {
	var list []*replica.Replica
	for _, r := range all {
		if r.State == replica.StateReady && !r.IsForeign() {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b *replica.Replica) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return list
}

// wanted is on how many of n replicas an adapter is to be: its share of the requests, times the headroom, and no more than its requests are worth.
func wanted(uses, total float64, n int, headroom float64) int {
	if total <= 0 {
		return 1
	}
	share := math.Ceil(headroom * float64(n) * uses / total)
	return max(1, min(n, int(share), int(math.Ceil(uses/leastUses))))
}

// placed is an adapter that the rule has loaded on a replica.
type placed struct {
	life    uint64    // of the engine that loaded it
	listed  bool      // the registry has seen it there
	surplus time.Time // since when it is not needed there; zero: it is
}

// plan returns the next change of each replica that is not busy. loaded are the adapters that the rule has loaded so far, in which it notes the ones not needed.
func (g *group) plan(c *Config, loaded map[key]*placed, busy func(key) bool, now time.Time) []step {
	total, count, taken := 0.0, map[replica.ID]int{}, map[replica.ID]bool{}
	for _, a := range g.adapters {
		total += a.uses
		for _, r := range a.on {
			count[r.ID]++
		}
	}
	slices.SortStableFunc(g.adapters, func(a, b listed) int { return cmp.Compare(b.uses, a.uses) })
	var steps []step
	add := func(s step) { steps, taken[s.on.ID] = append(steps, s), true }
	for _, a := range g.adapters {
		missing := wanted(a.uses, total, len(g.replicas), c.Headroom) - len(a.on) - a.coming
		for ; missing > 0; missing-- {
			var best *replica.Replica
			for _, r := range g.replicas {
				if taken[r.ID] || slices.Contains(a.on, r) || count[r.ID] >= c.MaxPerReplica || busy(key{r.ID, a.name}) {
					continue
				}
				if best == nil || count[r.ID] < count[best.ID] {
					best = r
				}
			}
			if best == nil {
				break
			}
			add(step{on: best, adapter: a.name, path: a.path, load: true})
		}
		for _, r := range a.on {
			own := loaded[key{r.ID, a.name}]
			switch {
			case own == nil:
			case missing >= 0:
				own.surplus = time.Time{}
			case own.surplus.IsZero():
				own.surplus = now
				missing++
			default:
				missing++
				if now.Sub(own.surplus) >= c.Idle && !taken[r.ID] && !busy(key{r.ID, a.name}) {
					add(step{on: r, adapter: a.name})
				}
			}
		}
	}
	return steps
}
