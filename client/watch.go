package client

import (
	"context"
	"iter"

	"google.golang.org/grpc"

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
	resp, err := c.replicas.List(ctx, &kvpilotv1.ListRequest{Model: model})
	if err != nil {
		return nil, err
	}
	return resp.GetReplicas(), nil
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
