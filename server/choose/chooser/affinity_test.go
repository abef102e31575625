package chooser_test

import (
	"context"
	"fmt"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// collected returns the values of one metric by the value of its one label.
func collected(t *testing.T, reader sdkmetric.Reader, name string) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	label := func(s attribute.Set) string {
		if kv, ok := s.Get(0); ok {
			return kv.Value.String()
		}
		return ""
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					values[label(p.Attributes)] = p.Value
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					values[label(p.Attributes)] = float64(p.Value)
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					values[label(p.Attributes)] = float64(p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					values[label(p.Attributes)] = float64(p.Count)
				}
			default:
				t.Fatalf("%s is a %T", name, data)
			}
		}
	}
	return values
}

// The affinity rate starts at 1, falls when the owner of a session cannot serve, and
// recovers; the busiest sessions are counted without their names.
func TestConsistentHashShowsItsAffinity(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	f := newFleet(t, 4, func(c *chooser.Config, p *chooser.Params) {
		c.Policy = decision.ConsistentHash
		c.Ring.AffinityWindow = 4
		p.Scope = scope.Measured(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	})
	ask := func(session string, exclude ...replica.ID) replica.ID {
		req := f.request(1, 100)
		req.Session, req.Exclude = session, exclude
		c := f.choose(req)
		c.Release(done(decision.EndCompleted))
		return c.Replica.ID
	}
	rate := func() float64 { return collected(t, reader, "kvpilot.chooser.affinity_rate")[""] }
	if rate() != 1 {
		t.Errorf("the rate begins at %v", rate())
	}
	home := ask("s")
	ask("s")
	if rate() != 1 {
		t.Errorf("a session that stayed has the rate %v", rate())
	}
	if ask("s", home) == home {
		t.Fatal("an excluded replica was chosen")
	}
	if rate() != 0.5 {
		t.Errorf("after one of two moved the rate is %v", rate())
	}
	if got := collected(t, reader, "kvpilot.chooser.ring_fallbacks"); got["1"] != 1 || got["2"]+got["-1"] != 0 || len(got) != 3 {
		t.Errorf("fallbacks %v, want one to the first successor", got)
	}
	for range 5 { // back home, and the window forgets
		ask("s")
	}
	if rate() != 1 {
		t.Errorf("the window is over, the rate is %v", rate())
	}
	for i := range 30 {
		ask(fmt.Sprint("other ", i))
	}
	top := collected(t, reader, "kvpilot.chooser.top_sessions")
	if len(top) != 20 || top["1"] != 8 || top["2"] != 1 {
		t.Errorf("the busiest sessions are %v", top)
	}
	if built := collected(t, reader, "kvpilot.chooser.ring_rebuild.duration")[""]; built != 1 {
		t.Errorf("%v rings were built for one pool", built)
	}
}
