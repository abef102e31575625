package kvindex_test

import (
	"testing"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// collect reads all metrics as sums over their labels.
func collect(t *testing.T, from *metric.ManualReader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := from.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			var points []metricdata.DataPoint[int64]
			switch data := m.Data.(type) {
			case metricdata.Gauge[int64]:
				points = data.DataPoints
			case metricdata.Sum[int64]:
				points = data.DataPoints
			}
			got[m.Name] = 0
			for _, p := range points {
				got[m.Name] += p.Value
			}
		}
	}
	return got
}

func TestMetricsExistAtZeroAndCountRanksThatAreGone(t *testing.T) {
	reader := metric.NewManualReader()
	ix := kvindex.New(kvindex.DefaultConfig(), kvindex.Params{Scope: scope.Measured(metric.NewMeterProvider(metric.WithReader(reader)))})
	for _, name := range []string{"held", "blocks", "memory", "sets", "believed", "ranks", "stored", "removed", "unkeyed", "removed_unknown", "cut", "lookup_retries"} {
		if n, ok := collect(t, reader)["kvpilot.kvindex."+name]; !ok || n != 0 {
			t.Errorf("%s = %d, exists %v, want zero from the start", name, n, ok)
		}
	}
	if err := ix.AddRank(0, kvindex.RankInfo{}); err != nil {
		t.Fatal(err)
	}
	ix.SetState(0, kvblock.FeedExact)
	ix.Store(0, stored(1, 5))
	orphan := stored(2, 3)
	orphan.HasParent, orphan.Parent = true, 99
	ix.Store(0, orphan)
	got := collect(t, reader)
	for name, want := range map[string]int64{"held": 5, "blocks": 8, "stored": 8, "unkeyed": 3, "ranks": 1} {
		if n := got["kvpilot.kvindex."+name]; n != want {
			t.Errorf("%s = %d, want %d", name, n, want)
		}
	}
	ix.RemoveRank(0)
	got = collect(t, reader)
	for name, want := range map[string]int64{"held": 0, "blocks": 0, "stored": 8, "unkeyed": 3, "ranks": 0} {
		if n := got["kvpilot.kvindex."+name]; n != want {
			t.Errorf("after the rank is gone %s = %d, want %d", name, n, want)
		}
	}
}
