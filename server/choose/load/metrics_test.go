package load_test

import (
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// gather reads all metrics as "name{labels}" to value.
func gather(t *testing.T, reader *sdk.ManualReader) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					values[m.Name+p.Attributes.Encoded(encoder{})] = float64(p.Value)
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					values[m.Name+p.Attributes.Encoded(encoder{})] = p.Value
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					values[m.Name+p.Attributes.Encoded(encoder{})] = float64(p.Value)
				}
			}
		}
	}
	return values
}

// two knows two ranks of one replica.
type two struct{}

func (two) RankOf(slot replica.Slot) (replica.Rank, bool) {
	return replica.Rank{Replica: "a", Index: int(slot)}, slot < 2
}

func TestMetricsShowWhatIsBooked(t *testing.T) {
	reader := sdk.NewManualReader()
	b := load.New(load.DefaultConfig(), load.Params{
		Scope: scope.Measured(sdk.NewMeterProvider(sdk.WithReader(reader))),
		Ranks: two{},
	})
	for slot := range replica.Slot(3) {
		b.AddRank(slot)
	}
	if got := gather(t, reader); got["kvpilot.load.ended{reason=expired}"] != 0 || len(got) < 20 {
		t.Errorf("at the start %v, want all series at zero", got)
	}
	r := mustReserve(t, b, load.Request{ID: "x", Slot: 1, PromptTokens: 64, PrefillTokens: 64, PrefillTime: time.Hour, BlockSize: 16})
	_, _ = b.ReserveIf(0, load.Request{ID: "y", Slot: 1}) // refused, as the metrics must show
	r.Renew()
	got := gather(t, reader)
	for name, want := range map[string]float64{
		"kvpilot.load.reservations": 1, "kvpilot.load.refused{reason=conflict}": 1, "kvpilot.load.reports{call=renew,outcome=applied}": 1,
		"kvpilot.load.requests{rank=1,replica=a}": 1, "kvpilot.load.requests{rank=0,replica=a}": 0, "kvpilot.load.blocks{rank=1,replica=a}": 4,
	} {
		if value, there := got[name]; !there || value != want {
			t.Errorf("%s is %v (there: %v), want %v", name, value, there, want)
		}
	}
	if v := got["kvpilot.load.prefill_tokens{rank=1,replica=a}"]; v < 63 || v > 64 {
		t.Errorf("prefill tokens %v, want nearly 64", v)
	}
	if age, there := got["kvpilot.load.reservation.age{rank=1,replica=a}"]; !there || age <= 0 || age > 3600 {
		t.Errorf("the reservation's age is %v (there: %v)", age, there)
	}
	if age, there := got["kvpilot.load.reservation.age{rank=0,replica=a}"]; !there || age != 0 {
		t.Errorf("without a reservation the age is %v (there: %v), want 0", age, there)
	}
	r.Release()
	if got := gather(t, reader); got["kvpilot.load.ended{reason=released}"] != 1 || got["kvpilot.load.reservations"] != 0 {
		t.Errorf("after the release %v", got)
	}
}
