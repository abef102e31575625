package grpcapi

import (
	"strings"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// named is the value of an enum that has the name, such as "no_key"; unspecified when there is none.
func named[E ~int32](values map[string]int32, prefix, name string) E {
	return E(values[prefix+strings.ToUpper(name)])
}

func reasonProto(r decision.Reason) kvpilotv1.ChoiceReason {
	if r == decision.ReasonCost { // of nearly all
		return kvpilotv1.ChoiceReason_CHOICE_REASON_COST
	}
	return named[kvpilotv1.ChoiceReason](kvpilotv1.ChoiceReason_value, "CHOICE_REASON_", string(r))
}

// vetoProto and sourceProto count on the order of the contract's values, which a test holds.
func vetoProto(v decision.Veto) kvpilotv1.Veto { return kvpilotv1.Veto(v) }

func sourceProto(s decision.SpeedSource) kvpilotv1.SpeedSource { return kvpilotv1.SpeedSource(s) + 1 }

func objectiveProto(o decision.Objective) kvpilotv1.Objective {
	return named[kvpilotv1.Objective](kvpilotv1.Objective_value, "OBJECTIVE_", string(o))
}

// objectiveOf is the objective of a contract's value; empty when it is not specified.
func objectiveOf(o kvpilotv1.Objective) decision.Objective {
	if o == kvpilotv1.Objective_OBJECTIVE_UNSPECIFIED {
		return ""
	}
	return decision.Objective(strings.ToLower(strings.TrimPrefix(o.String(), "OBJECTIVE_")))
}

func aloneProto(why string) kvpilotv1.Alone {
	return named[kvpilotv1.Alone](kvpilotv1.Alone_value, "ALONE_", why)
}

func suspicionsProto(s conduct.Suspicion) []kvpilotv1.Suspicion {
	var list []kvpilotv1.Suspicion
	for _, name := range s.Names() {
		list = append(list, named[kvpilotv1.Suspicion](kvpilotv1.Suspicion_value, "SUSPICION_", name))
	}
	return list
}

func tokenSourceProto(s tokenizer.Source) kvpilotv1.TokenSource {
	return named[kvpilotv1.TokenSource](kvpilotv1.TokenSource_value, "TOKEN_SOURCE_", string(s))
}

func parityProto(state string) kvpilotv1.ParityState {
	return named[kvpilotv1.ParityState](kvpilotv1.ParityState_value, "PARITY_STATE_", state)
}
