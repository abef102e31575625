package server

import (
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/observe/exposition"
	"github.com/kvpilot/kvpilot/server/observe/history"
	"github.com/kvpilot/kvpilot/server/observe/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "rewrite docs/metrics.md")

// instrument is one metric as its part declares it.
type instrument struct{ instruments.Instrument }

// catalog is a meter provider that remembers what was declared.
type catalog struct {
	noop.MeterProvider
	list map[string]instrument
}

// Declared notes a declaration.
func (c *catalog) Declared(d instruments.Instrument) { c.list[d.Name] = instrument{d} }

// exposed is the metric's name as Prometheus serves it.
func (i instrument) exposed() string {
	name := strings.ReplaceAll(i.Name, ".", "_")
	unit := map[string]string{"s": "seconds", "By": "bytes", "1": "ratio", "ms": "milliseconds"}[i.Unit]
	if strings.HasSuffix(i.Unit, "/s") {
		unit = "per_second"
	}
	if unit == "ratio" && i.Kind != "gauge" {
		unit = ""
	}
	if unit != "" && !strings.HasSuffix(name, "_"+unit) {
		name += "_" + unit
	}
	if i.Kind == "counter" && !strings.HasSuffix(name, "_total") {
		name += "_total"
	}
	return name
}

// declared lists every metric of a whole router.
func declared(t *testing.T) []instrument {
	t.Helper()
	r := &catalog{list: map[string]instrument{}}
	tel := telemetry.Of(slog.New(slog.DiscardHandler), r, tracenoop.NewTracerProvider())
	c := config.Default()
	c.Fleet.Listen, c.Fleet.Key = "127.0.0.1:1", secret.New("a key that makes the fleet's parts")
	c.EPP.Listen = "127.0.0.1:1"
	p, err := newParts(c, tel, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{config: c, telemetry: tel, parts: p}
	if s.surfaces, err = s.newSurfaces(tel, &history.Traces{}); err != nil {
		t.Fatal(err)
	}
	s.newSettings(c)
	var list []instrument
	for _, name := range slices.Sorted(maps.Keys(r.list)) {
		if strings.HasPrefix(name, "kvpilot.") { // otelgrpc's own follow OpenTelemetry's conventions
			list = append(list, r.list[name])
		}
	}
	return list
}

func TestEveryMetricIsNamedAndExplained(t *testing.T) {
	for _, i := range declared(t) {
		parts := strings.Split(i.Name, ".")
		if len(parts) < 3 {
			t.Errorf("%s: want kvpilot.<package>.<what>", i.Name)
		}
		if !strings.HasSuffix(i.Help, ".") {
			t.Errorf("%s is not described in a sentence: %q", i.Name, i.Help)
		}
		if i.Unit == "" {
			t.Errorf("%s has no unit; a count has that of what is counted in braces", i.Name)
		}
		if strings.HasSuffix(i.Name, ".total") {
			t.Errorf("%s: Prometheus adds total to a counter's name", i.Name)
		}
	}
}

func TestTheMetricsReferenceIsUpToDate(t *testing.T) {
	const file = "../docs/metrics.md"
	var b strings.Builder
	b.WriteString("# Metrics\n\nGenerated from the parts by `make docs`; do not edit. Served at `/metrics` of the admin address, in Prometheus' text form\nor OpenMetrics' (with exemplars that name a trace). Labels have few values: replica names, routes, reasons, outcomes; never request ids,\nmodels beyond those served, or anything that a client can invent. A histogram adds `_bucket`, `_sum` and `_count`.\n\n" +
		"No metric has labels of replica and model. Series of a replica go with it. Of the served models, the first 64 that are used have histograms of their own and\nthe first 200 counters; later ones count as `other`.\n\n" +
		"In addition there are `kvpilot_build_info` with the version, the process's own (`process_*`, `go_*`), and by OpenTelemetry's conventions\n`http_server_*` for REST, `rpc_server_*` for gRPC, and for all requests\n`gen_ai_server_request_duration_seconds`, `gen_ai_server_time_to_first_token_seconds`,\n`gen_ai_server_time_per_output_token_seconds` and `gen_ai_client_token_usage`.\n\n" +
		"With `telemetry.metrics.native_histograms` every histogram is a native one too, for scrapers that ask for protobuf: set\n`scrape_native_histograms: true` and, as long as a dashboard reads `_bucket`, `always_scrape_classic_histograms: true` in Prometheus\n(3.8 or newer; before, the feature flag `native-histograms`). With `telemetry.metrics.epp_pool` the metrics that the endpoint picker\nof Gateway API's inference extension has too are repeated under its names, those of llm-d's picker among them:\n\n" + exposition.Table())
	section := ""
	for _, i := range declared(t) {
		if s := strings.Split(i.Name, ".")[1]; s != section {
			section = s
			fmt.Fprintf(&b, "\n## %s\n\n", s)
		}
		fmt.Fprintf(&b, "- `%s` (%s): %s\n", i.exposed(), i.Kind, i.Help)
	}
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Error("docs/metrics.md differs from what the parts declare: run make docs and commit it")
	}
}
