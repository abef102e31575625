package instruments_test

import (
	"testing"

	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

func TestKnownSeriesBeginAtZeroAndObservedOnesAreRead(t *testing.T) {
	reader := sdk.NewManualReader()
	s := instruments.New(sdk.NewMeterProvider(sdk.WithReader(reader)), "server/x")
	s.Counter("kvpilot.x.plain", "{thing}", "Things.")
	s.CounterBy("kvpilot.x.by", "{thing}", "Things, by kind.", instruments.Label("kind", "a"), instruments.Label("kind", "b"))
	s.CounterBy("kvpilot.x.unknown", "{thing}", "Things, by name.")
	gauge, float, count := s.ObservedGauge("kvpilot.x.now", "{thing}", "Things now."), s.ObservedFloat("kvpilot.x.share", "1", "Share."), s.ObservedCounter("kvpilot.x.all", "{thing}", "All things.")
	s.Observe(func(o metric.Observer) {
		o.ObserveInt64(gauge, 3)
		o.ObserveFloat64(float, 0.5, instruments.Rank("r", 1))
		o.ObserveInt64(count, 7)
	})
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, scope := range all.ScopeMetrics {
		if scope.Scope.Name != "github.com/kvpilot/kvpilot/server/x" {
			t.Errorf("scope %q", scope.Scope.Name)
		}
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				got[m.Name] = len(data.DataPoints)
			case metricdata.Gauge[int64]:
				got[m.Name] = len(data.DataPoints)
			case metricdata.Gauge[float64]:
				got[m.Name] = len(data.DataPoints)
			}
		}
	}
	for name, points := range map[string]int{"kvpilot.x.plain": 1, "kvpilot.x.by": 2, "kvpilot.x.unknown": 0, "kvpilot.x.now": 1, "kvpilot.x.share": 1, "kvpilot.x.all": 1} {
		if got[name] != points {
			t.Errorf("%s has %d points, want %d", name, got[name], points)
		}
	}
}

func TestABadNameIsABug(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	instruments.New(sdk.NewMeterProvider(), "server/x").Counter("1 bad name", "", "")
}
