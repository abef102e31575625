package remote

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// collect returns the metrics by name.
func collect(t *testing.T, reader *sdkmetric.ManualReader) map[string]metricdata.Aggregation {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	byName := map[string]metricdata.Aggregation{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			byName[m.Name] = m.Data
		}
	}
	return byName
}

// series counts what a scraper stores of a metric.
func series(data metricdata.Aggregation) (n int) {
	switch data := data.(type) {
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			n += len(p.BucketCounts) + 2
		}
	case metricdata.Sum[int64]:
		n = len(data.DataPoints)
	case metricdata.Sum[float64]:
		n = len(data.DataPoints)
	case metricdata.Gauge[int64]:
		n = len(data.DataPoints)
	}
	return n
}

// byReplica sums the values of a metric by replica and further labels.
func byReplica[N int64 | float64](data metricdata.Aggregation, more ...attribute.Key) map[string]N {
	values := map[string]N{}
	for _, p := range data.(metricdata.Sum[N]).DataPoints {
		id, _ := p.Attributes.Value("replica")
		name := id.AsString()
		for _, key := range more {
			value, _ := p.Attributes.Value(key)
			name += " " + value.AsString()
		}
		values[name] += p.Value
	}
	return values
}

func TestCallsAreTimedPerReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		reader := sdkmetric.NewManualReader()
		p := New(DefaultConfig(), Params{Sender: f, Scope: scope.Measured(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))})
		f.set("a", after(40*time.Millisecond, okay))
		f.set("b", answer(500, `{"error":"no"}`))
		for _, name := range []string{"a", "b"} {
			_, _ = ask(t, p, replicas(name)) // the outcome is what is measured
		}
		p.wg.Wait()
		all := collect(t, reader)
		calls, took := byReplica[int64](all["kvpilot.tokenizer.endpoint.calls"]), byReplica[float64](all["kvpilot.tokenizer.endpoint.call_time"])
		if calls["a"] != 1 || calls["b"] < 1 || took["a"] < 0.04 || took["b"] >= 0.04 {
			t.Errorf("calls %v took %v s, want one of 40 ms by a and shorter ones by b", calls, took)
		}
		if failed := byReplica[int64](all["kvpilot.tokenizer.endpoint.failures"], "kind"); failed["b status"] != calls["b"] || len(failed) != 1 {
			t.Errorf("failures %v of %v calls", failed, calls)
		}
		outcomes := map[string]uint64{}
		for _, p := range all["kvpilot.tokenizer.call.duration"].(metricdata.Histogram[float64]).DataPoints {
			outcome, _ := p.Attributes.Value("outcome")
			outcomes[outcome.AsString()] += p.Count
		}
		if outcomes["ok"] != 1 || outcomes["status"] != uint64(calls["b"]) {
			t.Errorf("outcomes %v", outcomes)
		}
	})
}

// The series of a fleet grow with its replicas, not with replicas times models, and go with their replica.
func TestALargeFleetHasFewSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const engines, models = 64, 20
		f := newFleet()
		reader := sdkmetric.NewManualReader()
		cfg := DefaultConfig()
		p := New(cfg, Params{Sender: f, Scope: scope.Measured(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))})
		for e := range engines {
			name := fmt.Sprint("replica-", e)
			f.set(name, okay)
			for m := range models {
				if _, err := p.Do(t.Context(), replicas(name), &Job{Op: OpPrompt, Model: fmt.Sprint("model-", m), Prompt: chatPrompt(`{"role":"user","content":"x"}`)}); err != nil {
					t.Fatal(err)
				}
			}
		}
		p.wg.Wait()
		total := func() (n int) {
			for _, data := range collect(t, reader) {
				n += series(data)
			}
			return n
		}
		if n := total(); n < 2*engines || n > 3*engines+100 {
			t.Errorf("%d replicas with %d models have %d series", engines, models, n)
		}
		p.table.expire(time.Now().Add(cfg.TTL))
		if n := total(); n > 100 {
			t.Errorf("%d series are left when all replicas are gone", n)
		}
	})
}
