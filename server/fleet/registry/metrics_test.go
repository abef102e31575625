package registry_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

func TestMetricsShowTheFleet(t *testing.T) {
	reader := sdk.NewManualReader()
	f := newFleet("a", "b")
	f.set("b", func(h *host) { h.status = 0 })
	params := registry.Params{Scope: scope.Measured(sdk.NewMeterProvider(sdk.WithReader(reader)))}
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

// states returns the series of kvpilot.registry.replica_state, by replica.
func states(t *testing.T, reader *sdk.ManualReader) map[string]string {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	list := map[string]string{}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if m.Name != "kvpilot.registry.replica_state" {
			continue
		}
		for _, p := range m.Data.(metricdata.Gauge[int64]).DataPoints {
			id, _ := p.Attributes.Value("replica")
			state, _ := p.Attributes.Value("state")
			if list[id.AsString()] != "" || p.Value != 1 {
				t.Errorf("%s has two series, or the value %d", id.AsString(), p.Value)
			}
			list[id.AsString()] = state.AsString()
		}
	}
	return list
}

func TestAMetricNamesTheStateOfEachReplica(t *testing.T) {
	reader := sdk.NewManualReader()
	f := newFleet("a", "b", "c")
	f.set("c", func(h *host) { h.status = 0 })
	params := registry.Params{Scope: scope.Measured(sdk.NewMeterProvider(sdk.WithReader(reader)))}
	virtual(t, f, listed(spec("a"), spec("b"), spec("c")), params, func(t *testing.T, r *registry.Registry, _ *watcher) {
		want := func(when string, list map[string]string) {
			t.Helper()
			if got := states(t, reader); !maps.Equal(got, list) {
				t.Errorf("%s: %v, want %v", when, got, list)
			}
		}
		pass(time.Second)
		want("at first", map[string]string{"a": "ready", "b": "ready", "c": "starting"})
		f.set("b", func(h *host) { h.status = 0 })
		pass(10 * time.Second)
		want("after a failure", map[string]string{"a": "ready", "b": "unhealthy", "c": "starting"})
		if err := r.Update(t.Context(), listed(spec("a"))); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		want("without b and c", map[string]string{"a": "ready"})
	})
}

// The ready replicas of a fleet that is too large are left out, never the others.
func TestTheSeriesOfReplicasAreBounded(t *testing.T) {
	const most = 1024
	reader := sdk.NewManualReader()
	var names []string
	var specs []registry.Spec
	for i := range most + 50 {
		names = append(names, fmt.Sprintf("r%04d", i))
		specs = append(specs, spec(names[i]))
	}
	f := newFleet(names...)
	last := names[len(names)-1]
	f.set(last, func(h *host) { h.status = 0 })
	params := registry.Params{Scope: scope.Measured(sdk.NewMeterProvider(sdk.WithReader(reader)))}
	virtual(t, f, listed(specs...), params, func(t *testing.T, _ *registry.Registry, _ *watcher) {
		pass(5 * time.Second)
		got := states(t, reader)
		if len(got) != most || got[last] != "starting" {
			t.Errorf("%d of %d replicas have series, want %d; the one that starts is %q", len(got), len(names), most, got[last])
		}
	})
}
