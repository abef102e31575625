package grpcapi

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/observe/decisionlog"
	"github.com/kvpilot/kvpilot/server/route/router"
)

func (s *routing) ExplainDecision(ctx context.Context, in *kvpilotv1.ExplainDecisionRequest) (*kvpilotv1.ExplainDecisionResponse, error) {
	var found []decisionlog.Entry
	named := in.GetDecisionId() + in.GetRequestId() // one of them is set
	switch key := in.GetKey().(type) {
	case *kvpilotv1.ExplainDecisionRequest_DecisionId:
		found = s.api.Decisions.Find(key.DecisionId)
	case *kvpilotv1.ExplainDecisionRequest_RequestId:
		found = s.api.Decisions.FindRequest(key.RequestId)
	}
	who := s.api.caller(ctx)
	found = slices.DeleteFunc(found, func(e decisionlog.Entry) bool { return !who.Sees(e.Decision.Tenant) })
	list := s.api.explainWide(ctx, in, entriesProto(found, false))
	if len(list) == 0 {
		return nil, apierror.New(apierror.DecisionNotFound, "the decision is not in the log: another router made it, or it is too old", nil)
	}
	if slices.ContainsFunc(list, func(d *kvpilotv1.Decision) bool { return d.GetTenant() != who.Tenant }) {
		s.api.recordRead(ctx, kvpilotv1.RoutingService_ExplainDecision_FullMethodName, named)
	}
	return &kvpilotv1.ExplainDecisionResponse{Decisions: list}, nil
}

func (s *routing) ListDecisions(ctx context.Context, in *kvpilotv1.ListDecisionsRequest) (*kvpilotv1.ListDecisionsResponse, error) {
	page, err := pageOf(in)
	if err != nil {
		return nil, err
	}
	if err := s.api.hold(ctx, listMemory); err != nil {
		return nil, err
	}
	who := s.api.caller(ctx)
	filter := filterFor(who, in.GetModel(), in.GetReplicaId())
	filter.Of, filter.SlowerThan = in.GetTenant(), in.GetSlowerThan().AsDuration()
	for _, end := range in.GetEnds() {
		filter.Ends = append(filter.Ends, endOf(end))
	}
	filter.Older = page.older
	found := s.api.Decisions.Last(page.size+disorder, filter)
	s.api.recordRead(ctx, kvpilotv1.RoutingService_ListDecisions_FullMethodName, "")
	out := &kvpilotv1.ListDecisionsResponse{Decisions: entriesProto(found, in.GetOnlyChosen())}
	if s.api.fleet(ctx) != nil {
		out.Decisions, out.Unanswered = s.api.listWide(ctx, in, out.Decisions, &page)
	}
	page.cut(out)
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

func (s *routing) WatchDecisions(in *kvpilotv1.WatchDecisionsRequest, out grpc.ServerStreamingServer[kvpilotv1.WatchDecisionsResponse]) error {
	who := s.api.caller(out.Context())
	s.api.recordRead(out.Context(), kvpilotv1.RoutingService_WatchDecisions_FullMethodName, "")
	sub := s.api.Decisions.Subscribe(filterFor(who, in.GetModel(), in.GetReplicaId()))
	defer sub.Close()
	if err := out.SendHeader(httpcall.StreamOpen()); err != nil {
		return err
	}
	ctx, done := s.api.lasting(out.Context())
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

// ScoreOverlap makes a dry run and returns the overlaps it found.
func (s *routing) ScoreOverlap(ctx context.Context, in *kvpilotv1.ScoreOverlapRequest) (*kvpilotv1.ScoreOverlapResponse, error) {
	q := s.api.question(ctx)
	q.Model, q.Adapter, q.Salt, q.Booking, q.Explain = in.GetModel(), in.GetAdapter(), in.GetCacheSalt(), router.DryRun, true
	switch p := in.GetPrompt().(type) {
	case *kvpilotv1.ScoreOverlapRequest_TokenIds:
		q.IDs = p.TokenIds.GetIds()
	case *kvpilotv1.ScoreOverlapRequest_Text:
		q.Text = p.Text
	case *kvpilotv1.ScoreOverlapRequest_Body:
		setBody(q, p.Body)
	}
	if out, passed, err := asDecider(ctx, s.api, q.Model, in.GetBody().GetJson(), func(ctx context.Context, c kvpilotv1.RoutingServiceClient) (*kvpilotv1.ScoreOverlapResponse, error) {
		return c.ScoreOverlap(ctx, in)
	}); passed {
		return out, err
	}
	a, err := s.api.Router.Choose(ctx, q)
	if err != nil {
		return nil, err
	}
	out := &kvpilotv1.ScoreOverlapResponse{PromptTokens: uint32(a.Decision.PromptTokens)}
	list := a.Decision.List()
	for i := range list {
		c := &list[i]
		out.Ranks = append(out.Ranks, &kvpilotv1.RankOverlap{
			ReplicaId: string(c.Replica), Rank: uint32(c.Rank), Overlap: overlapProto(c),
			Feed: feedProto(c.Feed), BlockSize: c.BlockSize,
		})
	}
	return out, nil
}

func (s *routing) GetLoads(ctx context.Context, in *kvpilotv1.GetLoadsRequest) (*kvpilotv1.GetLoadsResponse, error) {
	list, err := s.api.replicasOf(in.GetModel())
	if err != nil {
		return nil, err
	}
	if err := s.api.hold(ctx, answerMemory); err != nil {
		return nil, err
	}
	s.api.recordRead(ctx, kvpilotv1.RoutingService_GetLoads_FullMethodName, "")
	now := time.Now()
	rates := map[replica.Slot]chooser.Rate{}
	for _, rate := range s.api.Rates() {
		rates[rate.Slot] = rate
	}
	out := &kvpilotv1.GetLoadsResponse{}
	for _, r := range list {
		if in.GetReplicaId() != "" && string(r.ID) != in.GetReplicaId() {
			continue
		}
		for rank, slot := range r.Slots {
			load := s.rankLoad(r, rank, slot, now)
			if rate, known := rates[slot]; known {
				load.Speed, load.Conduct = rateProto(rate), conductProto(rate.Conduct)
			}
			out.Ranks = append(out.Ranks, load)
		}
	}
	s.api.loadsWide(ctx, in, list, out)
	return out, nil
}

func (s *routing) rankLoad(r *replica.Replica, rank int, slot replica.Slot, now time.Time) *kvpilotv1.RankLoad {
	v := s.api.Book.View(slot, now)
	out := &kvpilotv1.RankLoad{
		ReplicaId: string(r.ID), Rank: uint32(rank),
		Requests: uint32(v.InFlight), Waiting: uint32(v.Prefilling),
		QueuedTokens: uint64(max(v.PrefillTokens, 0)), DecodeBlocks: v.DecodeBlocks, BacklogMs: millis(v.PrefillTime),
	}
	if e, ok := s.api.Stats(slot); ok && !e.At.IsZero() {
		running, waiting := uint32(max(e.Running, 0)), uint32(max(e.Waiting, 0))
		out.EngineRunning, out.EngineWaiting, out.KvUsage = &running, &waiting, &e.KVUsage
		out.EngineAge = durationpb.New(now.Sub(e.At))
	}
	return out
}

func (s *routing) ListPolicies(context.Context, *kvpilotv1.ListPoliciesRequest) (*kvpilotv1.ListPoliciesResponse, error) {
	choice := s.api.Choice()
	params, err := selector.Apply(selector.DefaultParams(), choice.Weights)
	if err != nil {
		return nil, err
	}
	numbers := selector.Numbers(&params)
	out := &kvpilotv1.ListPoliciesResponse{}
	for _, p := range decision.Policies() {
		about := policies(p)
		entry := &kvpilotv1.Policy{Name: string(p), Description: about.text, Default: p == choice.Policy, Params: map[string]float64{}}
		for _, name := range about.params {
			entry.Params[name] = numbers[name]
		}
		if entry.Default {
			out.Policies = append([]*kvpilotv1.Policy{entry}, out.Policies...)
		} else {
			out.Policies = append(out.Policies, entry)
		}
	}
	return out, nil
}

// about describes a policy for people.
type about struct {
	text   string
	params []string
}

func policies(p decision.Policy) about {
	switch p {
	case decision.PredictedTTFT:
		return about{"The rank with the lowest predicted time to the first token, plus the delay that the choice adds to other requests, which weighs more as the fleet fills.",
			[]string{"temperature", "cpu_credit", "disk_credit", "session_bonus"}}
	case decision.OverlapLoad:
		return about{"Cached blocks against booked load, as a sum.", []string{"temperature", "cpu_credit", "disk_credit", "overlap_credit", "credit_decay", "prefill_scale", "request_weight"}}
	case decision.WeightedScorers:
		return about{"A weighted sum of scores for cached prefix, queue and KV use.", []string{"temperature", "cpu_credit", "disk_credit", "prefix_weight", "queue_weight", "kv_weight"}}
	case decision.PrefixAffinity:
		return about{"The rank that received the longest prefix of the text, unless load is too uneven.", []string{"match_threshold", "imbalance_threshold"}}
	case decision.ConsistentHash:
		return about{"The rank that owns the session on a hash ring.", nil}
	case decision.LeastTokens:
		return about{"The rank with the fewest uncached prompt tokens queued.", nil}
	case decision.LeastRequests:
		return about{"The rank with the fewest requests in flight.", nil}
	case decision.PowerOfTwo:
		return about{"The less loaded of two random ranks.", nil}
	case decision.RoundRobin:
		return about{"Each rank in turn.", nil}
	case decision.Random:
		return about{"Any rank.", nil}
	case decision.PolicyOther: // of another router's decision
	}
	return about{}
}
