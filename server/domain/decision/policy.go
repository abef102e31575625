package decision

import "slices"

// Policy names a rule of choice.
type Policy string

// The policies. PredictedTTFT is the default.
const (
	PredictedTTFT   Policy = "predicted-ttft"
	OverlapLoad     Policy = "overlap-load"
	WeightedScorers Policy = "weighted-scorers"
	PrefixAffinity  Policy = "prefix-affinity"
	ConsistentHash  Policy = "consistent-hash"
	LeastTokens     Policy = "least-tokens"
	LeastRequests   Policy = "least-requests"
	PowerOfTwo      Policy = "power-of-two"
	RoundRobin      Policy = "round-robin"
	Random          Policy = "random"
)

// Policies lists all policies, the default first.
func Policies() []Policy {
	return []Policy{
		PredictedTTFT, OverlapLoad, WeightedScorers, PrefixAffinity, ConsistentHash,
		LeastTokens, LeastRequests, PowerOfTwo, RoundRobin, Random,
	}
}

// ReadsCache reports whether the rule looks at the blocks that replicas hold of a prompt. The others are
// decided without knowing its tokens.
func (p Policy) ReadsCache() bool {
	switch p {
	case PredictedTTFT, OverlapLoad, WeightedScorers:
		return true
	default:
		return false
	}
}

// ReadsLoad reports whether the rule goes by the requests in flight, so that routers which decide apart from each other decide worse.
// PrefixAffinity, whose first rule is the text that each router has seen, is not one of them.
func (p Policy) ReadsLoad() bool {
	switch p {
	case PredictedTTFT, OverlapLoad, WeightedScorers, LeastTokens, LeastRequests, PowerOfTwo:
		return true
	default:
		return false
	}
}

// Known reports whether p is one of the policies.
func (p Policy) Known() bool { return slices.Contains(Policies(), p) }

// PolicyOther stands for a policy that another router names and this one does not know.
const PolicyOther Policy = "other"

// ReadPolicy is a policy as another router names it.
func ReadPolicy(text string) Policy {
	if p := Policy(text); p.Known() {
		return p
	}
	return PolicyOther
}

// ReadReason is a reason as another router names it. None is none.
func ReadReason(text string) Reason {
	switch r := Reason(text); r {
	case "", ReasonCost, ReasonTie, ReasonOnly, ReasonPinned, ReasonDice, ReasonNoKey, ReasonTooLong, ReasonImbalance, ReasonSplit, ReasonNone:
		return r
	case ReasonOther:
	}
	return ReasonOther
}

// Reason says in one word why a decision fell as it did.
type Reason string

// The reasons.
const (
	// ReasonCost: the lowest cost under the policy.
	ReasonCost Reason = "cost"
	// ReasonTie: several candidates cost the same, the dice chose.
	ReasonTie Reason = "tie"
	// ReasonOnly: one candidate was left after the filters.
	ReasonOnly Reason = "only"
	// ReasonPinned: the request named its replica.
	ReasonPinned Reason = "pinned"
	// ReasonDice: the policy or the temperature drew it.
	ReasonDice Reason = "dice"
	// ReasonNoKey: the policy needs a key (ids, text, session) that the request lacks; load decided.
	ReasonNoKey Reason = "no_key"
	// ReasonTooLong: the prompt exceeds every context; it goes where the longest is, and the engine
	// words the refusal.
	ReasonTooLong Reason = "too_long"
	// ReasonImbalance: the policy's own load guard overrode affinity.
	ReasonImbalance Reason = "imbalance"
	// ReasonSplit: it costs less to have another rank compute the prompt.
	ReasonSplit Reason = "split"
	// ReasonNone: no candidate was left.
	ReasonNone Reason = "none"
	// ReasonOther stands for a reason that another router names and this one does not know.
	ReasonOther Reason = "other"
)
