package grpcapi

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/observe/audit"
)

// replicas is ReplicaService: it lists the fleet and lets it change.
type replicas struct {
	kvpilotv1.UnimplementedReplicaServiceServer
	ranks   *Ranks
	pools   pools
	senders *senders
	others  *others
	trail   trail
	life    *life
	// registration lets callers without a key register replicas.
	registration bool
}

func (s *replicas) Register(ctx context.Context, in *kvpilotv1.RegisterRequest) (_ *kvpilotv1.RegisterResponse, err error) {
	defer func() {
		s.trail.record(ctx, audit.Register, kvpilotv1.ReplicaService_Register_FullMethodName, in.GetReplicaId(), err)
	}()
	if err := s.mayRegister(); err != nil {
		return nil, err
	}
	_, there := s.ranks.Registry.Snapshot().Replica(replica.ID(in.GetReplicaId()))
	spec, err := specFrom(in)
	if err != nil {
		return nil, err
	}
	_, until, err := s.ranks.Registry.Register(ctx, spec, in.GetLease().AsDuration())
	if err != nil {
		return nil, registryError(err)
	}
	return &kvpilotv1.RegisterResponse{Lease: durationpb.New(time.Until(until).Round(time.Millisecond)), Created: !there}, nil
}

func specFrom(in *kvpilotv1.RegisterRequest) (registry.Spec, error) {
	spec := registry.Spec{
		ID: replica.ID(in.GetReplicaId()), URL: in.GetUrl(), APIKey: secret.New(in.GetApiKey()),
		Ranks: int(in.GetRanks()), Labels: in.GetLabels(),
	}
	list := in.GetEvents()
	if spec.Ranks == 0 {
		spec.Ranks = max(len(list), 1)
	}
	switch {
	case len(list) == 0:
		spec.Events = registry.EventsSpec{Endpoint: "none", Replay: "none"}
	default:
		spec.Events = eventsSpec(list[0])
	}
	// The registry counts ports up from the first rank's, as vLLM does; another layout cannot be said there.
	for i, e := range list[min(1, len(list)):] {
		if e.GetEndpoint() != "" && !portsCountUp(list[0].GetEndpoint(), e.GetEndpoint(), i+1) {
			return spec, apierror.New(apierror.NotSupported, "the ranks' event endpoints must differ by their rank in the port, as vLLM's do", nil, apierror.WithParam("events"))
		}
	}
	return spec, nil
}

func eventsSpec(e *kvpilotv1.EventsSpec) registry.EventsSpec {
	out := registry.EventsSpec{Endpoint: e.GetEndpoint(), Replay: e.GetReplayEndpoint(), Topic: e.GetTopic()}
	if out.Replay == "" {
		out.Replay = "none"
	}
	return out
}

func (s *replicas) Deregister(ctx context.Context, in *kvpilotv1.DeregisterRequest) (_ *kvpilotv1.DeregisterResponse, err error) {
	defer func() {
		s.trail.record(ctx, audit.Deregister, kvpilotv1.ReplicaService_Deregister_FullMethodName, in.GetReplicaId(), err)
	}()
	if err := s.mayRegister(); err != nil {
		return nil, err
	}
	if err := s.ranks.Registry.Deregister(ctx, replica.ID(in.GetReplicaId())); err != nil {
		return nil, registryError(err)
	}
	return &kvpilotv1.DeregisterResponse{}, nil
}

// mayRegister rejects registration without credentials unless the operator allows it.
func (s *replicas) mayRegister() error {
	if !s.senders.callers.Open() || s.registration {
		return nil
	}
	return apierror.New(apierror.PermissionDenied, "registration is off: set registry.registration.enabled, or use API keys", nil)
}

func (s *replicas) List(ctx context.Context, in *kvpilotv1.ListRequest) (*kvpilotv1.ListResponse, error) {
	list, err := s.pools.replicasOf(in.GetModel())
	if err != nil {
		return nil, err
	}
	list, next, err := replicaPage(in, list)
	if err != nil {
		return nil, err
	}
	out, known := &kvpilotv1.ListResponse{NextPageToken: next}, s.ranks.caches()
	for _, r := range list {
		out.Replicas = append(out.Replicas, s.ranks.replicaProto(r, known))
	}
	s.countDraining(ctx, list, out.GetReplicas()...)
	return out, nil
}

func (s *replicas) Get(ctx context.Context, in *kvpilotv1.GetRequest) (*kvpilotv1.GetResponse, error) {
	r, ok := s.ranks.Registry.Snapshot().Replica(replica.ID(in.GetReplicaId()))
	if !ok {
		return nil, s.pools.unknownReplica(in.GetReplicaId())
	}
	out := s.ranks.replicaProto(r, s.ranks.caches())
	s.countDraining(ctx, []*replica.Replica{r}, out)
	return &kvpilotv1.GetResponse{Replica: out}, nil
}

func (s *replicas) Watch(in *kvpilotv1.WatchRequest, out grpc.ServerStreamingServer[kvpilotv1.WatchResponse]) error {
	if err := out.SendHeader(httpcall.StreamOpen()); err != nil {
		return err
	}
	ctx, done := s.life.lasting(out.Context())
	defer done()
	for change := range s.ranks.Registry.Watch(ctx) {
		r := change.Replica
		if r == nil {
			continue
		}
		if _, serves := r.Serves(in.GetModel()); in.GetModel() != "" && !serves {
			continue
		}
		if err := out.Send(&kvpilotv1.WatchResponse{Replica: s.ranks.replicaProto(r, s.ranks.caches()), Removed: change.Kind == registry.ChangeRemoved}); err != nil {
			return err
		}
	}
	return stopped(out.Context())
}

// countDraining replaces this router's count of the requests in flight on draining replicas by their deciders', which know the requests
// of all routers. A decider that does not answer changes nothing.
func (s *replicas) countDraining(ctx context.Context, list []*replica.Replica, shown ...*kvpilotv1.Replica) {
	if s.others.of(ctx) == nil {
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
			if len(r.DrainedRanks) > 0 && !r.IsRankDrained(rank) {
				continue
			}
			loads.Ranks = append(loads.Ranks, &kvpilotv1.RankLoad{ReplicaId: string(r.ID), Rank: uint32(rank), Requests: uint32(s.ranks.Book.View(slot, now).InFlight)})
		}
	}
	if len(draining) == 0 {
		return
	}
	s.others.loadsWide(ctx, &kvpilotv1.GetLoadsRequest{}, draining, loads)
	for _, l := range loads.GetRanks() {
		counts[l.GetReplicaId()].InFlight += l.GetRequests()
	}
}

// registryError is the public form of a registry's error. Errors about the caller's own spec are shown as they are.
func registryError(err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, registry.ErrUnknownReplica):
		return apierror.New(apierror.ReplicaNotFound, "there is no such replica", err, apierror.WithParam("replica_id"))
	case errors.Is(err, registry.ErrTaken):
		return apierror.New(apierror.Conflict, registry.ErrTaken.Error(), err, apierror.WithParam("replica_id"))
	case errors.Is(err, registry.ErrLastReady):
		return apierror.New(apierror.Conflict, err.Error()+"; set force to drain it all the same", err, apierror.WithParam("force"))
	case errors.Is(err, registry.ErrNoRank):
		return apierror.New(apierror.InvalidBody, err.Error(), err, apierror.WithParam("ranks"))
	case errors.Is(err, registry.ErrForbidden):
		return apierror.New(apierror.PermissionDenied, err.Error(), err, apierror.WithParam("url"))
	case errors.Is(err, registry.ErrRanks):
		return apierror.New(apierror.Overloaded, err.Error(), err, apierror.WithParam("ranks"))
	case errors.Is(err, registry.ErrFull):
		return apierror.New(apierror.Overloaded, registry.ErrFull.Error(), err)
	case errors.Is(err, registry.ErrClosed):
		return apierror.New(apierror.ShuttingDown, "the router is stopping", err)
	}
	return apierror.New(apierror.InvalidBody, err.Error(), err)
}

// portsCountUp reports whether an endpoint is the first rank's with the port raised by rank.
func portsCountUp(first, other string, rank int) bool {
	host, port, ok := cutPort(first)
	otherHost, otherPort, ok2 := cutPort(other)
	return ok && ok2 && host == otherHost && otherPort == port+rank
}

func cutPort(endpoint string) (host string, port int, ok bool) {
	i := strings.LastIndexByte(endpoint, ':')
	if i < 0 {
		return "", 0, false
	}
	port, err := strconv.Atoi(endpoint[i+1:])
	return endpoint[:i], port, err == nil
}

func (s *replicas) Drain(ctx context.Context, in *kvpilotv1.DrainRequest) (*kvpilotv1.DrainResponse, error) {
	who := s.senders.of(ctx)
	err := s.ranks.Registry.Drain(ctx, replica.ID(in.GetReplicaId()), registry.DrainOptions{
		By: cmp.Or(who.Name, who.Tenant), Reason: in.GetReason(), Force: in.GetForce(), Move: in.GetMove(), Ranks: intsOf(in.GetRanks()),
	})
	out, err := s.drained(ctx, in.GetReplicaId(), err)
	s.trail.recordWith(ctx, audit.Event{Kind: audit.Drain, Method: kvpilotv1.ReplicaService_Drain_FullMethodName, Target: in.GetReplicaId(), Detail: in.GetReason()}, err)
	if err != nil {
		return nil, err
	}
	return &kvpilotv1.DrainResponse{Replica: out}, nil
}

func (s *replicas) Undrain(ctx context.Context, in *kvpilotv1.UndrainRequest) (*kvpilotv1.UndrainResponse, error) {
	out, err := s.drained(ctx, in.GetReplicaId(), s.ranks.Registry.Undrain(ctx, replica.ID(in.GetReplicaId()), intsOf(in.GetRanks())...))
	s.trail.recordWith(ctx, audit.Event{Kind: audit.Undrain, Method: kvpilotv1.ReplicaService_Undrain_FullMethodName, Target: in.GetReplicaId()}, err)
	if err != nil {
		return nil, err
	}
	return &kvpilotv1.UndrainResponse{Replica: out}, nil
}

// intsOf converts the numbers of ranks.
func intsOf(list []uint32) []int {
	var out []int
	for _, n := range list {
		out = append(out, int(n))
	}
	return out
}

// drained returns a replica after a drain or its end, or the error of that.
func (s *replicas) drained(ctx context.Context, id string, err error) (*kvpilotv1.Replica, error) {
	if err != nil && !errors.Is(err, registry.ErrUnknownReplica) {
		return nil, registryError(err)
	}
	r, ok := s.ranks.Registry.Snapshot().Replica(replica.ID(id))
	if !ok || err != nil {
		return nil, s.pools.unknownReplica(id)
	}
	out := s.ranks.replicaProto(r, s.ranks.caches())
	s.countDraining(ctx, []*replica.Replica{r}, out)
	return out, nil
}
