package grpcapi

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/observe/decisionlog"
)

// records shows decisions that were made.
type records struct {
	decisions *decisionlog.Log
	senders   *senders
	others    *others
	trail     trail
	life      *life
}

func (s *records) ExplainDecision(ctx context.Context, in *kvpilotv1.ExplainDecisionRequest) (*kvpilotv1.ExplainDecisionResponse, error) {
	var found []decisionlog.Entry
	named := in.GetDecisionId() + in.GetRequestId() // one of them is set
	switch key := in.GetKey().(type) {
	case *kvpilotv1.ExplainDecisionRequest_DecisionId:
		found = s.decisions.Find(key.DecisionId)
	case *kvpilotv1.ExplainDecisionRequest_RequestId:
		found = s.decisions.FindRequest(key.RequestId)
	}
	who := s.senders.of(ctx)
	found = slices.DeleteFunc(found, func(e decisionlog.Entry) bool { return !who.Sees(e.Decision.Tenant) })
	list := s.others.explainWide(ctx, in, entriesProto(found, false))
	if len(list) == 0 {
		return nil, apierror.New(apierror.DecisionNotFound, "the decision is not in the log: another router made it, or it is too old", nil)
	}
	if slices.ContainsFunc(list, func(d *kvpilotv1.Decision) bool { return d.GetTenant() != who.Tenant }) {
		s.trail.recordRead(ctx, kvpilotv1.RoutingService_ExplainDecision_FullMethodName, named)
	}
	return &kvpilotv1.ExplainDecisionResponse{Decisions: list}, nil
}

func (s *records) ListDecisions(ctx context.Context, in *kvpilotv1.ListDecisionsRequest) (*kvpilotv1.ListDecisionsResponse, error) {
	page, err := pageOf(in)
	if err != nil {
		return nil, err
	}
	if err := hold(ctx, listMemory); err != nil {
		return nil, err
	}
	who := s.senders.of(ctx)
	filter := filterFor(who, in.GetModel(), in.GetReplicaId())
	filter.Of, filter.SlowerThan = in.GetTenant(), in.GetSlowerThan().AsDuration()
	for _, end := range in.GetEnds() {
		filter.Ends = append(filter.Ends, endOf(end))
	}
	filter.Older = page.older
	found := s.decisions.Last(page.size+disorder, filter)
	s.trail.recordRead(ctx, kvpilotv1.RoutingService_ListDecisions_FullMethodName, "")
	out := &kvpilotv1.ListDecisionsResponse{Decisions: entriesProto(found, in.GetOnlyChosen())}
	if s.others.of(ctx) != nil {
		out.Decisions, out.Unanswered = s.others.listWide(ctx, in, out.Decisions, &page)
	}
	page.cut(in, out)
	return out, nil
}

// filterFor selects the decisions that the caller may see.
func filterFor(who *caller.Caller, model, id string) decisionlog.Filter {
	return decisionlog.Filter{Model: model, Replica: id, Own: !who.May(caller.Observe), Tenant: who.Tenant}
}

func entriesProto(list []decisionlog.Entry, onlyChosen bool) []*kvpilotv1.Decision {
	out := make([]*kvpilotv1.Decision, len(list))
	for i, e := range list {
		out[i] = decisionProto(e.Decision, e.Outcome, onlyChosen)
	}
	return out
}

func (s *records) WatchDecisions(in *kvpilotv1.WatchDecisionsRequest, out grpc.ServerStreamingServer[kvpilotv1.WatchDecisionsResponse]) error {
	who := s.senders.of(out.Context())
	s.trail.recordRead(out.Context(), kvpilotv1.RoutingService_WatchDecisions_FullMethodName, "")
	sub := s.decisions.Subscribe(filterFor(who, in.GetModel(), in.GetReplicaId()))
	defer sub.Close()
	if err := out.SendHeader(httpcall.StreamOpen()); err != nil {
		return err
	}
	ctx, done := s.life.lasting(out.Context())
	defer done()
	reported := uint64(0)
	for {
		select {
		case <-ctx.Done():
			return stopped(out.Context())
		case e := <-sub.Entries():
			lost := sub.Lost()
			if err := out.Send(&kvpilotv1.WatchDecisionsResponse{Decision: decisionProto(e.Decision, e.Outcome, in.GetOnlyChosen()), Lost: lost - reported}); err != nil {
				return err
			}
			reported = lost
		}
	}
}
