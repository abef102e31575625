package grpcapi

import (
	"cmp"
	"context"
	"errors"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/observe/audit"
)

func (s *replicas) Drain(ctx context.Context, in *kvpilotv1.DrainRequest) (_ *kvpilotv1.DrainResponse, err error) {
	event := audit.Event{Kind: audit.Drain, Method: kvpilotv1.ReplicaService_Drain_FullMethodName, Target: in.GetReplicaId(), Detail: in.GetReason()}
	if in.GetUndo() {
		event.Kind = audit.Undrain
	}
	defer func() { s.trail.recordWith(ctx, event, err) }()
	id := replica.ID(in.GetReplicaId())
	if in.GetUndo() {
		err = s.ranks.Registry.Undrain(ctx, id)
	} else {
		who := s.senders.of(ctx)
		err = s.ranks.Registry.Drain(ctx, id, registry.DrainOptions{By: cmp.Or(who.Name, who.Tenant), Reason: in.GetReason(), Force: in.GetForce(), Move: in.GetMove()})
	}
	if err != nil && !errors.Is(err, registry.ErrUnknownReplica) {
		return nil, registryError(err)
	}
	r, ok := s.ranks.Registry.Snapshot().Replica(id)
	if !ok || err != nil {
		return nil, s.pools.unknownReplica(in.GetReplicaId())
	}
	out := s.ranks.replicaProto(r, s.ranks.caches())
	s.countDraining(ctx, []*replica.Replica{r}, out)
	return &kvpilotv1.DrainResponse{Replica: out}, nil
}
