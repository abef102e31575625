package router_test

import (
	"fmt"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/route/router"
)

// TestMetricsHaveTheModel: an alias counts as the model that it stands for, and a name that the client invented as other.
func TestMetricsHaveTheModel(t *testing.T) {
	reader := sdk.NewManualReader()
	f := start(t, 1, func(p *router.Params, _ *chooser.Config, rc *registry.Config) {
		p.Scope = scope.Measured(sdk.NewMeterProvider(sdk.WithReader(reader)))
		rc.Aliases = map[string]string{"gpt": "m"}
	})
	f.script(streaming([]string{piece(0, "a", ""), piece(0, "b", "stop"), `data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}` + "\n\n", "data: [DONE]\n\n"}, nil))
	for _, model := range []string{"m", "gpt"} {
		must(t, f.router.Serve(t.Context(), chat(`{"model":"`+model+`","stream":true,"messages":[{"role":"user","content":"hi"}]}`), &client{}))
	}
	for _, body := range []string{`{"model":"invented","messages":[]}`, `{`} {
		if err := f.router.Serve(t.Context(), chat(body), &client{}); err == nil {
			t.Errorf("%s was served", body)
		}
	}
	f.settled()
	for name, want := range map[string]map[string]int64{
		"kvpilot.router.requests":              {"m": 2, "other": 2},
		"kvpilot.router.request.duration":      {"m": 2, "other": 2},
		"kvpilot.router.ttft":                  {"m": 2},
		"kvpilot.router.time_per_output_token": {"m": 2},
		"kvpilot.router.tokens":                {"m": 10}, // of two prompts and answers; overlap and cached are zeros
	} {
		if got := countsByModel(t, reader, name); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s by model: %v, want %v", name, got, want)
		}
	}
	for name, want := range map[string]map[string]int64{
		"gen_ai.server.request.duration":    {"m": 1, "gpt": 1, "": 2}, // an outage shows here too
		"gen_ai.server.time_to_first_token": {"m": 1, "gpt": 1},
		"gen_ai.client.token.usage":         {"m": 2, "gpt": 2},
	} {
		if got := countsBy(t, reader, name, "gen_ai.request.model"); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s by model: %v, want %v", name, got, want)
		}
	}
	if got := f.requests(); got != 2 {
		t.Errorf("the engine had %d requests, want 2", got)
	}
}

// countsByModel sums up a metric's counts by the label model, which all of its series must have.
func countsByModel(t *testing.T, reader *sdk.ManualReader, name string) map[string]int64 {
	t.Helper()
	got := countsBy(t, reader, name, "model")
	if _, ok := got[""]; ok {
		t.Errorf("%s has series without the label model: %v", name, got)
	}
	return got
}

// countsBy sums up a metric's counts by a label; series without it count for "".
func countsBy(t *testing.T, reader *sdk.ManualReader, name, label string) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	must(t, reader.Collect(t.Context(), &all))
	got := map[string]int64{}
	add := func(set attribute.Set, n int64) {
		value, _ := set.Value(attribute.Key(label))
		if n > 0 {
			got[value.AsString()] += n
		}
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, int64(p.Count))
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, int64(p.Count))
				}
			}
		}
	}
	return got
}

func TestFaultsAreCountedByCauseAndOutcome(t *testing.T) {
	reader := sdk.NewManualReader()
	f := start(t, 2, func(p *router.Params, _ *chooser.Config, _ *registry.Config) {
		p.Scope = scope.Measured(sdk.NewMeterProvider(sdk.WithReader(reader)))
	})
	f.script(text(429, "later"))
	call := chat(`{"model":"m","messages":[]}`)
	if err := f.router.Serve(t.Context(), call, &client{}); err == nil {
		t.Error("an answer came of engines that refuse")
	}
	call.Method = "PO ST"
	if err := f.router.Serve(t.Context(), call, &client{}); err == nil {
		t.Error("a method with a space was sent")
	}
	f.settled()
	for label, want := range map[string]map[string]int64{
		"cause":   {"replica": 2, "request": 1},
		"outcome": {"refused": 2, "unsendable": 1},
	} {
		if got := countsBy(t, reader, "kvpilot.router.faults", label); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("faults by %s: %v, want %v", label, got, want)
		}
	}
}
