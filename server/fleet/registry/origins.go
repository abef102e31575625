package registry

import (
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// origins join the sources' lists of replicas. Only the core's goroutine touches them.
type origins struct {
	log     *slog.Logger
	lists   map[string]map[replica.ID]Spec
	doubled map[replica.ID]string // the source with an ignored listing of an id
	changed bool                  // since the last join
}

// listing is the joint entry of all sources for one replica.
type listing struct {
	spec   Spec
	source string
	access credentials
}

// set replaces a source's list.
func (o *origins) set(source string, specs []Spec) {
	listed := make(map[replica.ID]Spec, len(specs))
	for _, s := range specs {
		listed[s.ID] = s
	}
	o.lists[source] = listed
	o.changed = true
}

// register adds a registered replica to its source, or changes it.
func (o *origins) register(spec Spec) {
	listed := o.lists[sourceRegistered]
	if old, again := listed[spec.ID]; !again || !old.equal(spec) {
		listed[spec.ID] = spec
		o.changed = true
	}
}

// deregister removes a registered replica.
func (o *origins) deregister(id replica.ID) {
	delete(o.lists[sourceRegistered], id)
	o.changed = true
}

// registeredRanks is the number of ranks of the registered replicas except one.
func (o *origins) registeredRanks(except replica.ID) (ranks int) {
	for id, s := range o.lists[sourceRegistered] {
		if id != except {
			ranks += max(s.Ranks, 1)
		}
	}
	return ranks
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
	case strings.HasPrefix(name, sourceKubernetes), strings.HasPrefix(name, sourcePool):
		return 3
	}
	return 4
}

// join returns the replicas of all sources. It logs a replica that two of them list, once.
func (o *origins) join() map[replica.ID]listing {
	o.changed = false
	names := slices.SortedFunc(maps.Keys(o.lists), func(a, b string) int {
		if d := sourceOrder(a) - sourceOrder(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	all, doubled := map[replica.ID]listing{}, map[replica.ID]string{}
	for _, name := range names {
		for id, spec := range o.lists[name] {
			first, taken := all[id]
			if !taken {
				all[id] = listing{spec: spec, source: name}
				continue
			}
			doubled[id] = name
			if o.doubled[id] != name {
				o.log.Warn("replica listed twice", "replica", id, "used", first.source, "ignored", name)
			}
		}
	}
	o.doubled = doubled
	return all
}
