package genai

import (
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// point is what a histogram holds for one set of labels.
type point struct {
	count uint64
	sum   float64
}

func TestRecord(t *testing.T) {
	chat := Request{Operation: "chat", Model: "m", Duration: 3 * time.Second, FirstToken: time.Second, Input: 100, Output: 11}
	failed := chat
	failed.ErrorType, failed.Input, failed.Output = "503", 0, 0
	unary := Request{Operation: "embeddings", Duration: time.Second, Input: 7}
	const base = "gen_ai.operation.name=chat,gen_ai.provider.name=vllm,gen_ai.request.model=m"
	for name, c := range map[string]struct {
		request Request
		want    map[string]point
	}{
		"a stream": {chat, map[string]point{
			"gen_ai.server.request.duration{" + base + "}":                     {1, 3},
			"gen_ai.server.time_to_first_token{" + base + "}":                  {1, 1},
			"gen_ai.server.time_per_output_token{" + base + "}":                {1, .2},
			"gen_ai.client.token.usage{" + base + ",gen_ai.token.type=input}":  {1, 100},
			"gen_ai.client.token.usage{" + base + ",gen_ai.token.type=output}": {1, 11},
		}},
		"a broken stream has a duration only": {failed, map[string]point{
			"gen_ai.server.request.duration{error.type=503," + base + "}": {1, 3},
		}},
		"an answer that is no stream": {unary, map[string]point{
			"gen_ai.server.request.duration{gen_ai.operation.name=embeddings,gen_ai.provider.name=vllm}":                    {1, 1},
			"gen_ai.client.token.usage{gen_ai.operation.name=embeddings,gen_ai.provider.name=vllm,gen_ai.token.type=input}": {1, 7},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			reader := sdkmetric.NewManualReader()
			m := New(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
			m.Record(c.request)
			got := collect(t, reader)
			for series, want := range c.want {
				if got[series] != want {
					t.Errorf("%s = %v, want %v", series, got[series], want)
				}
			}
			if len(got) != len(c.want) {
				t.Errorf("series %v, want %v", got, c.want)
			}
		})
	}
}

func TestRecordKeepsLabelSets(t *testing.T) {
	m := New(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())))
	r := Request{Operation: "chat", Model: "m", Duration: 3 * time.Second, FirstToken: time.Second, Input: 100, Output: 11}
	m.Record(r)
	if n := testing.AllocsPerRun(100, func() { m.Record(r) }); n > 10 { // the SDK copies its options
		t.Errorf("%v allocations per request", n)
	}
}

func TestWithoutProvider(t *testing.T) {
	m := New(nil)
	m.Record(Request{Operation: "chat", Input: 1})
}

func collect(t *testing.T, reader sdkmetric.Reader) map[string]point {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]point{}
	series := func(name string, set attribute.Set) string {
		return name + "{" + set.Encoded(attribute.DefaultEncoder()) + "}"
	}
	for _, scope := range all.ScopeMetrics {
		for _, metric := range scope.Metrics {
			switch data := metric.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					got[series(metric.Name, p.Attributes)] = point{p.Count, p.Sum}
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					got[series(metric.Name, p.Attributes)] = point{p.Count, float64(p.Sum)}
				}
			}
		}
	}
	return got
}
