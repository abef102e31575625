package instruments_test

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// Each key has its series from the start; a key that was not named has none, and costs no panic.
func TestKeyedCountsTheKeysThatItWasMadeWith(t *testing.T) {
	reader := sdk.NewManualReader()
	set := instruments.New(sdk.NewMeterProvider(sdk.WithReader(reader)), "test")
	c := instruments.NewKeyed(set, "kvpilot.test", "{x}", "Help.", []string{"a", "b"}, func(key string) metric.MeasurementOption { return instruments.Label("key", key) })
	c.Add("b")
	c.Add("c")
	var got metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &got); err != nil {
		t.Fatal(err)
	}
	counts := map[string]int64{}
	for _, point := range got.ScopeMetrics[0].Metrics[0].Data.(metricdata.Sum[int64]).DataPoints {
		key, _ := point.Attributes.Value("key")
		counts[key.AsString()] = point.Value
	}
	if len(counts) != 2 || counts["a"] != 0 || counts["b"] != 1 {
		t.Errorf("the counts are %v, want a: 0 and b: 1 alone", counts)
	}
	var none instruments.Keyed[string]
	none.Add("a")
}
