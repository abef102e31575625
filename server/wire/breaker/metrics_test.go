package breaker

import (
	"maps"
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

func TestAMetricNamesTheReplicasThatFailRequests(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	known := []replica.ID{"fails", "serves"}
	b := New(testConfig())
	b.Meter(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), func() []replica.ID { return known })
	want := func(want map[string]int64) {
		t.Helper()
		var all metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		got := map[string]int64{}
		for _, m := range all.ScopeMetrics[0].Metrics {
			if m.Name == "kvpilot.upstream.replica_faults" {
				for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
					id, _ := p.Attributes.Value("replica")
					got[id.AsString()] = p.Value
				}
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("faults %v, want %v", got, want)
		}
	}
	want(map[string]int64{"fails": 0, "serves": 0})
	for range 7 { // the last two are of attempts that began before the breaker opened
		b.Report("fails", Pass{}, found(retry.Reset))
		b.Report("serves", Pass{}, found(retry.OK))
	}
	b.Report("serves", Pass{}, found(retry.ClientFault))
	want(map[string]int64{"fails": 7, "serves": 0})
	known = []replica.ID{"serves"}
	b.Retain(func(id replica.ID) bool { return id == "serves" })
	want(map[string]int64{"serves": 0})
	if len(b.faults) != 0 {
		t.Errorf("%d replicas that are gone are remembered", len(b.faults))
	}
	cfg := testConfig()
	cfg.Failures = 0
	b.Update(cfg)
	b.Report("serves", Pass{}, found(retry.Reset))
	want(map[string]int64{"serves": 1})
}
