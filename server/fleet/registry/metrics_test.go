package registry_test

import (
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

func TestMetricsShowTheFleet(t *testing.T) {
	reader := sdk.NewManualReader()
	f := newFleet("a", "b")
	f.set("b", func(h *host) { h.status = 0 })
	params := registry.Params{Meter: sdk.NewMeterProvider(sdk.WithReader(reader))}
	virtual(t, f, listed(spec("a"), spec("b")), params, func(t *testing.T, r *registry.Registry, _ *watcher) {
		pass(time.Second)
		if err := r.Drain(t.Context(), "a", registry.DrainOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
		var all metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		replicas, changes, probes := map[string]int64{}, map[string]int64{}, map[string]int64{}
		by := func(into map[string]int64, key attribute.Key, points []metricdata.DataPoint[int64]) {
			for _, p := range points {
				v, _ := p.Attributes.Value(key)
				into[v.AsString()] = p.Value
			}
		}
		for _, m := range all.ScopeMetrics[0].Metrics {
			switch m.Name {
			case "kvpilot.registry.replicas":
				by(replicas, "state", m.Data.(metricdata.Gauge[int64]).DataPoints)
			case "kvpilot.registry.state_changes":
				by(changes, "state", m.Data.(metricdata.Sum[int64]).DataPoints)
			case "kvpilot.registry.probes":
				by(probes, "outcome", m.Data.(metricdata.Sum[int64]).DataPoints)
			}
		}
		if replicas["draining"] != 1 || replicas["starting"] != 1 || replicas["ready"] != 0 || len(replicas) != 4 {
			t.Errorf("replicas %v, want one draining, one starting, and the other states at zero", replicas)
		}
		if changes["starting"] != 2 || changes["ready"] != 1 || changes["draining"] != 1 {
			t.Errorf("state changes %v", changes)
		}
		if probes["ok"] < 1 || probes["refused"] < 1 {
			t.Errorf("probes %v, want some ok and some refused", probes)
		}
	})
}
