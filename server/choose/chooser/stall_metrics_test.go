package chooser_test

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

func TestAMetricNamesTheRankThatStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		e := newEngines(2)
		f := newFleet(t, 2, func(c *chooser.Config, p *chooser.Params) {
			c.HoldAbove = 0
			p.Engines, p.Scope = e, scope.Measured(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
		})
		defer f.running(t.Context())()
		want := func(when string, want map[string]int64) {
			t.Helper()
			var all metricdata.ResourceMetrics
			if err := reader.Collect(t.Context(), &all); err != nil {
				t.Fatal(err)
			}
			got := map[string]int64{}
			for _, scope := range all.ScopeMetrics {
				for _, m := range scope.Metrics {
					if m.Name != "kvpilot.chooser.stalled" {
						continue
					}
					for _, p := range m.Data.(metricdata.Gauge[int64]).DataPoints {
						id, _ := p.Attributes.Value("replica")
						got[id.AsString()] = p.Value
					}
				}
			}
			if !maps.Equal(got, want) {
				t.Errorf("%s: %v, want %v", when, got, want)
			}
		}
		time.Sleep(3 * time.Second)
		want("while both work", map[string]int64{"r0": 0, "r1": 0})
		e.set(0, func(s *engineState) { s.stopped, s.stoppedAt = true, time.Now() })
		time.Sleep(3 * time.Second)
		want("when one is stopped", map[string]int64{"r0": 1, "r1": 0})
		e.set(0, func(s *engineState) { s.stopped = false })
		time.Sleep(3 * time.Second)
		want("when it continues", map[string]int64{"r0": 0, "r1": 0})
	})
}
