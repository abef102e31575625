package grpcapi

import (
	"fmt"
	"strings"
	"testing"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// sameName fails unless a value of the contract has the name of the router's own.
func sameName(t *testing.T, got fmt.Stringer, prefix, own string) {
	t.Helper()
	if want := prefix + strings.ToUpper(own); got.String() != want {
		t.Errorf("%s is %s in the contract", want, got)
	}
}

func TestTheContractNamesEachValue(t *testing.T) {
	for _, r := range []decision.Reason{
		decision.ReasonCost, decision.ReasonTie, decision.ReasonOnly, decision.ReasonPinned, decision.ReasonDice, decision.ReasonNoKey,
		decision.ReasonTooLong, decision.ReasonImbalance, decision.ReasonNone, decision.ReasonSplit,
	} {
		sameName(t, reasonProto(r), "CHOICE_REASON_", string(r))
	}
	for _, v := range decision.Vetoes() {
		sameName(t, vetoProto(v), "VETO_", v.String())
	}
	for s := decision.SpeedPrior; s <= decision.SpeedDistrusted; s++ {
		sameName(t, sourceProto(s), "SPEED_SOURCE_", s.String())
	}
	for _, o := range decision.Objectives() {
		sameName(t, objectiveProto(o), "OBJECTIVE_", string(o))
	}
	for _, s := range conduct.Suspicions() {
		sameName(t, suspicionsProto(s)[0], "SUSPICION_", s.String())
	}
	for _, s := range []tokenizer.Source{
		tokenizer.SourceBody, tokenizer.SourceExactCache, tokenizer.SourceConversation, tokenizer.SourceRender, tokenizer.SourceTokenize,
	} {
		sameName(t, tokenSourceProto(s), "TOKEN_SOURCE_", string(s))
	}
	for _, state := range []string{"unproven", "proven", "suspect"} {
		sameName(t, parityProto(state), "PARITY_STATE_", state)
	}
	for _, why := range []string{"silent", "unknown_rank", "no_replica", "moved"} {
		sameName(t, aloneProto(why), "ALONE_", why)
	}
	if got := reasonProto(decision.ReasonOther); got != kvpilotv1.ChoiceReason_CHOICE_REASON_UNSPECIFIED {
		t.Errorf("the reason of a router of another version is %s", got)
	}
}
