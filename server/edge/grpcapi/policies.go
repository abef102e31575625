package grpcapi

import (
	"context"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// policies lists how the router can choose.
type policies struct{ choice choice }

func (s policies) ListPolicies(context.Context, *kvpilotv1.ListPoliciesRequest) (*kvpilotv1.ListPoliciesResponse, error) {
	choice := s.choice.Config()
	params, err := selector.Apply(selector.DefaultParams(), choice.Weights)
	if err != nil {
		return nil, err
	}
	numbers := selector.Numbers(&params)
	out := &kvpilotv1.ListPoliciesResponse{}
	for _, p := range decision.Policies() {
		about := aboutOf(p)
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

func aboutOf(p decision.Policy) about {
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
