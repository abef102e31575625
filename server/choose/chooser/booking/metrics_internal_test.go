package booking

import (
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// A decision that another router made by a policy which this one does not know is counted.
func TestDecisionsOfOtherPoliciesAreCounted(t *testing.T) {
	m := newDecisions(instruments.New(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())), "test"))
	for _, policy := range append(decision.Policies(), decision.ReadPolicy("of a later version")) {
		if m.policies[policy] == nil {
			t.Fatalf("%q has no label", policy)
		}
		m.decided(&decision.Decision{Rule: decision.Rule{Policy: policy}})
	}
}
