package grpcapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/observe/audit"
)

// namesShown bounds the ids that an error lists.
const namesShown = 16

func (s *replicas) Drain(ctx context.Context, in *kvpilotv1.DrainRequest) (_ *kvpilotv1.DrainResponse, err error) {
	event := audit.Event{Kind: audit.Drain, Method: kvpilotv1.ReplicaService_Drain_FullMethodName, Target: in.GetReplicaId(), Detail: in.GetReason()}
	if in.GetUndo() {
		event.Kind = audit.Undrain
	}
	defer func() { s.api.recordWith(ctx, event, err) }()
	id := replica.ID(in.GetReplicaId())
	if in.GetUndo() {
		err = s.api.Registry.Undrain(ctx, id)
	} else {
		who := s.api.caller(ctx)
		err = s.api.Registry.Drain(ctx, id, registry.DrainOptions{By: cmp.Or(who.Name, who.Tenant), Reason: in.GetReason(), Force: in.GetForce(), Move: in.GetMove()})
	}
	if err != nil && !errors.Is(err, registry.ErrUnknownReplica) {
		return nil, registryError(err)
	}
	r, ok := s.api.Registry.Snapshot().Replica(id)
	if !ok || err != nil {
		return nil, s.api.unknownReplica(in.GetReplicaId())
	}
	out := s.api.replicaProto(r, s.api.caches())
	s.api.countDraining(ctx, []*replica.Replica{r}, out)
	return &kvpilotv1.DrainResponse{Replica: out}, nil
}

// unknownReplica is the error about an id that no replica has, with the ids that there are.
func (a *API) unknownReplica(id string) error {
	list := a.Registry.Snapshot().Replicas
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

// drainProto is the drain of a replica for callers; nil when it does not drain. The requests in flight are those that this router
// knows of.
func (a *API) drainProto(r *replica.Replica, d *registry.Drain) *kvpilotv1.ReplicaDrain {
	if r.State != replica.StateDraining {
		return nil
	}
	out := &kvpilotv1.ReplicaDrain{Since: timestamppb.New(r.Since)}
	if d != nil {
		out.Since, out.By, out.Reason, out.Move = timestamppb.New(d.Since), d.By, d.Reason, d.Move
	}
	now := time.Now()
	for _, slot := range r.Slots {
		out.InFlight += uint32(a.Book.View(slot, now).InFlight)
	}
	return out
}

// countDraining replaces this router's count of the requests in flight on draining replicas by their deciders', which know
// those of all routers. A decider that does not answer changes nothing.
func (a *API) countDraining(ctx context.Context, list []*replica.Replica, shown ...*kvpilotv1.Replica) {
	if a.fleet(ctx) == nil {
		return
	}
	loads := &kvpilotv1.GetLoadsResponse{}
	var draining []*replica.Replica
	counts := map[string]*kvpilotv1.ReplicaDrain{}
	now := time.Now()
	for i, r := range list {
		d := shown[i].GetDrain()
		if d == nil {
			continue
		}
		draining = append(draining, r)
		counts[string(r.ID)], d.InFlight = d, 0
		for rank, slot := range r.Slots {
			loads.Ranks = append(loads.Ranks, &kvpilotv1.RankLoad{ReplicaId: string(r.ID), Rank: uint32(rank), Requests: uint32(a.Book.View(slot, now).InFlight)})
		}
	}
	if len(draining) == 0 {
		return
	}
	a.loadsWide(ctx, &kvpilotv1.GetLoadsRequest{}, draining, loads)
	for _, l := range loads.GetRanks() {
		counts[l.GetReplicaId()].InFlight += l.GetRequests()
	}
}
