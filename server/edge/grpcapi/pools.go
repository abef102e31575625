package grpcapi

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// pools finds replicas by the callers' names.
type pools struct{ registry *registry.Registry }

// pool returns the replicas of a model; no name means the only model there is.
func (p pools) pool(model string) (*registry.Pool, error) {
	snapshot := p.registry.Snapshot()
	if model == "" {
		pool, ok := snapshot.Unnamed()
		if !ok {
			return nil, invalid("model", "is missing, and the router does not serve exactly one model."+snapshot.KnownModels())
		}
		return pool, nil
	}
	pool, ok := snapshot.Pool(model)
	if !ok {
		return nil, apierror.New(apierror.ModelNotFound, snapshot.UnknownModel(model), nil, apierror.WithParam("model"))
	}
	return pool, nil
}

// replicasOf are the replicas that serve a model; no name means all there are.
func (p pools) replicasOf(model string) ([]*replica.Replica, error) {
	if model == "" {
		return p.registry.Snapshot().Replicas, nil
	}
	pool, err := p.pool(model)
	if err != nil {
		return nil, err
	}
	return pool.Replicas, nil
}

// models are the base models that replicas serve, by name.
func (p pools) models() []string {
	seen := map[string]bool{}
	for _, r := range p.registry.Snapshot().Replicas {
		for _, m := range r.Models {
			if m.Parent == "" {
				seen[m.ID] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// namesShown bounds the ids that an error lists.
const namesShown = 16

// unknownReplica is the error about an id that no replica has, with the ids that there are.
func (p pools) unknownReplica(id string) error {
	list := p.registry.Snapshot().Replicas
	names := make([]string, 0, namesShown+1)
	for i, r := range list {
		if i == namesShown {
			names = append(names, fmt.Sprintf("and %d more", len(list)-i))
			break
		}
		names = append(names, string(r.ID))
	}
	text := fmt.Sprintf("there is no replica %q", id)
	if len(names) > 0 {
		text += "; known are " + strings.Join(names, ", ")
	}
	return apierror.New(apierror.ReplicaNotFound, text, registry.ErrUnknownReplica, apierror.WithParam("replica_id"))
}
