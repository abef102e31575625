package booking

import (
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// A decision that another router made by a policy which this one does not know is counted.
func TestDecisionsOfOtherPoliciesAreCounted(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	var m Metrics
	instruments.Declare(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), "test", &m)
	m.Know()
	for _, policy := range append(decision.Policies(), decision.ReadPolicy("of a later version")) {
		m.decided(&decision.Decision{Rule: decision.Rule{Policy: policy}})
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, one := range all.ScopeMetrics[0].Metrics {
		if one.Name != "kvpilot.chooser.decisions" {
			continue
		}
		points := one.Data.(metricdata.Sum[int64]).DataPoints
		if len(points) != len(decision.Policies())+1 {
			t.Errorf("%d policies are counted, want %d and other", len(points), len(decision.Policies()))
		}
		for _, p := range points {
			if policy, _ := p.Attributes.Value("policy"); p.Value != 1 {
				t.Errorf("%q has %d decisions, want 1", policy.AsString(), p.Value)
			}
		}
		return
	}
	t.Error("decisions are not counted")
}
