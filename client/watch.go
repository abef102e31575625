package client

import (
	"context"
	"iter"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// Explain returns the recorded decisions of a request, first attempt first.
func (c *Client) Explain(ctx context.Context, requestID string) ([]*kvpilotv1.Decision, error) {
	return c.explain(ctx, &kvpilotv1.ExplainDecisionRequest{Key: &kvpilotv1.ExplainDecisionRequest_RequestId{RequestId: requestID}})
}

// ExplainDecision returns one recorded decision, as Choice.DecisionId names it.
func (c *Client) ExplainDecision(ctx context.Context, decisionID string) ([]*kvpilotv1.Decision, error) {
	return c.explain(ctx, &kvpilotv1.ExplainDecisionRequest{Key: &kvpilotv1.ExplainDecisionRequest_DecisionId{DecisionId: decisionID}})
}

func (c *Client) explain(ctx context.Context, req *kvpilotv1.ExplainDecisionRequest) ([]*kvpilotv1.Decision, error) {
	resp, err := c.routing.ExplainDecision(ctx, req)
	if err != nil {
		return nil, err
	}
	return resp.GetDecisions(), nil
}

// ListReplicas returns the replicas that serve model; all of them when it is empty.
func (c *Client) ListReplicas(ctx context.Context, model string) ([]*kvpilotv1.Replica, error) {
	var list []*kvpilotv1.Replica
	in := &kvpilotv1.ListRequest{Model: model}
	for {
		resp, err := c.replicas.List(ctx, in)
		if err != nil {
			return nil, err
		}
		list = append(list, resp.GetReplicas()...)
		if in.PageToken = resp.GetNextPageToken(); in.GetPageToken() == "" {
			return list, nil
		}
	}
}

// Loads returns the loads that in selects, of all pages.
func Loads(ctx context.Context, routing kvpilotv1.RoutingServiceClient, in *kvpilotv1.GetLoadsRequest) (*kvpilotv1.GetLoadsResponse, error) {
	page, all := proto.CloneOf(in), &kvpilotv1.GetLoadsResponse{}
	for {
		resp, err := routing.GetLoads(ctx, page)
		if err != nil {
			return nil, err
		}
		all.Ranks = append(all.Ranks, resp.GetRanks()...)
		for _, router := range resp.GetUnanswered() {
			if !slices.Contains(all.GetUnanswered(), router) {
				all.Unanswered = append(all.Unanswered, router)
			}
		}
		if page.PageToken = resp.GetNextPageToken(); page.GetPageToken() == "" {
			return all, nil
		}
	}
}

// Decisions yields the recorded decisions that in selects, newest first, until the loop is left or a call fails: then the error comes as
// the last value.
func Decisions(ctx context.Context, routing kvpilotv1.RoutingServiceClient, in *kvpilotv1.ListDecisionsRequest) iter.Seq2[*kvpilotv1.Decision, error] {
	return func(yield func(*kvpilotv1.Decision, error) bool) {
		page := proto.CloneOf(in)
		for {
			resp, err := routing.ListDecisions(ctx, page)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, d := range resp.GetDecisions() {
				if !yield(d, nil) {
					return
				}
			}
			if page.PageToken = resp.GetNextPageToken(); page.GetPageToken() == "" {
				return
			}
		}
	}
}

// WatchReplicas yields every replica and then each change, until ctx ends, the loop is left, or
// the connection breaks: then the error comes as the last value.
func (c *Client) WatchReplicas(ctx context.Context, model string) iter.Seq2[*kvpilotv1.WatchResponse, error] {
	return watch(ctx, func(ctx context.Context) (grpc.ServerStreamingClient[kvpilotv1.WatchResponse], error) {
		return c.replicas.Watch(ctx, &kvpilotv1.WatchRequest{Model: model})
	})
}

// WatchDecisions yields decisions as they are made and again with their outcome, under the same
// rules as WatchReplicas. A reader that is too slow loses some and gets their number.
func (c *Client) WatchDecisions(ctx context.Context, model string) iter.Seq2[*kvpilotv1.WatchDecisionsResponse, error] {
	return watch(ctx, func(ctx context.Context) (grpc.ServerStreamingClient[kvpilotv1.WatchDecisionsResponse], error) {
		return c.routing.WatchDecisions(ctx, &kvpilotv1.WatchDecisionsRequest{Model: model})
	})
}

func watch[T any](ctx context.Context, open func(context.Context) (grpc.ServerStreamingClient[T], error)) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := open(inner)
		if err != nil {
			yield(nil, err)
			return
		}
		for {
			m, err := stream.Recv()
			if err != nil {
				if ctx.Err() == nil {
					yield(nil, err)
				}
				return
			}
			if !yield(m, nil) {
				return
			}
		}
	}
}
