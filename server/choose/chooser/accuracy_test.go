package chooser_test

import (
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// predictions reads kvpilot.chooser.predictions by replica and result, without those that are zero, and the ratios of all ranks.
func predictions(t *testing.T, reader *sdkmetric.ManualReader) (byRank map[string]int64, series, ratios int) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	byRank = map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch m.Name {
			case "kvpilot.chooser.predictions":
				for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
					series++
					id, _ := p.Attributes.Value("replica")
					result, _ := p.Attributes.Value("result")
					if p.Value > 0 {
						byRank[fmt.Sprint(id.AsString(), " ", result.AsString())] = p.Value
					}
				}
			case "kvpilot.chooser.prediction_error":
				for _, p := range m.Data.(metricdata.Histogram[float64]).DataPoints {
					ratios += int(p.Count)
					if p.Attributes.Len() > 0 {
						t.Errorf("the ratios have labels: %v", p.Attributes)
					}
				}
			}
		}
	}
	return byRank, series, ratios
}

func TestPredictionsAreCountedByRankAndResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		f := newFleet(t, 2, func(c *chooser.Config, p *chooser.Params) {
			c.HoldAbove, p.Scope = 0, scope.Measured(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
		})
		for i, slower := range []float64{1, 0.1, 10, 10} {
			req := f.request(i, 8000)
			req.Options.Pinned = f.replicas[i/2].ID
			c := f.choose(req)
			time.Sleep(time.Duration(slower * c.Decision.Pick().TTFT * float64(time.Second)))
			c.FirstToken()
			c.Release(chooser.Result{})
		}
		got, series, ratios := predictions(t, reader)
		if want := map[string]int64{"r0 close": 1, "r0 early": 1, "r1 late": 2}; !maps.Equal(got, want) || series != 6 || ratios != 4 {
			t.Errorf("predictions %v in %d series and %d ratios, want %v in 6 and 4", got, series, ratios, want)
		}
		f.chooser.RemoveRank(1)
		if got, series, _ := predictions(t, reader); got["r1 late"] != 0 || series != 3 {
			t.Errorf("a rank that is gone is still counted: %v in %d series", got, series)
		}
	})
}
