package enginestats_test

import (
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

func TestMetricsShowTheEnginesReports(t *testing.T) {
	reader := sdk.NewManualReader()
	e := &engine{status: 200, page: load(3, 2) + "vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n"}
	params := enginestats.Params{Scope: scope.New(nil, sdk.NewMeterProvider(sdk.WithReader(reader)), nil)}
	virtual(t, e, params, func(t *testing.T, p *enginestats.Poller) {
		p.Add(0, node(0), 0)
		pass(time.Second / 2)
		var all metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		states := map[string]int64{}
		var usage, foreign []float64
		for _, m := range all.ScopeMetrics[0].Metrics {
			switch data := m.Data.(type) {
			case metricdata.Gauge[int64]:
				for _, point := range data.DataPoints {
					state, _ := point.Attributes.Value(attribute.Key("state"))
					states[state.AsString()] = point.Value
				}
			case metricdata.Gauge[float64]:
				for _, point := range data.DataPoints {
					switch m.Name {
					case "kvpilot.enginestats.kv_usage":
						usage = append(usage, point.Value)
					case "kvpilot.enginestats.foreign_requests":
						foreign = append(foreign, point.Value)
					}
				}
			}
		}
		if states["running"] != 3 || states["waiting"] != 2 || len(usage) != 1 || usage[0] != 0.5 || len(foreign) != 1 || foreign[0] != 5 {
			t.Errorf("states %v, usage %v, foreign %v", states, usage, foreign)
		}
	})
}
