package main

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/sim/enginesim"
)

var labelNames = regexp.MustCompile(`([a-z_]+)="([^"]*)"`)

// seriesOf reads /metrics: the labels of each series, by metric.
func (f *fleet) seriesOf() map[string][]map[string]string {
	f.t.Helper()
	resp, err := http.Get("http://" + f.admin + "/metrics")
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	all := map[string][]map[string]string{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}
		name := line[:strings.IndexAny(line, "{ ")]
		labels := map[string]string{}
		for _, m := range labelNames.FindAllStringSubmatch(line, -1) {
			labels[m[1]] = m[2]
		}
		all[name] = append(all[name], labels)
	}
	return all
}

// The series of a router grow with its replicas and with its models, each by a bounded number, and never with one times the other.
func TestTheSeriesOfALargeFleetAreBounded(t *testing.T) {
	t.Parallel()
	const (
		replicas, models = 12, 80
		perReplica       = 40  // of one rank
		perTimedModel    = 150 // of the first 64, which have histograms
		perModel         = 20
		others           = 900
	)
	var names []string
	for i := range models {
		names = append(names, fmt.Sprint("model-", i))
	}
	f := startFleet(t, fleetOptions{replicas: replicas, engine: func(_ int, c *enginesim.Config) { c.Models = names }})
	for i, name := range names {
		for turn := range 2 {
			body := strings.Replace(conversation(fmt.Sprint(i), 1+turn, `,"stream":true,"stream_options":{"include_usage":true}`), `"model":"sim"`, fmt.Sprintf(`"model":%q`, name), 1)
			if a := f.post("/v1/chat/completions", body, "X-Kvpilot-Policy", "round-robin"); a.status != http.StatusOK {
				t.Fatalf("status %d: %s", a.status, a.body)
			}
		}
	}
	all := f.seriesOf()
	total := 0
	labelled := map[string]map[string]bool{} // the models of each metric
	for metric, list := range all {
		total += len(list)
		for _, labels := range list {
			model := labels["model"] + labels["gen_ai_request_model"]
			if labels["replica"] != "" && model != "" {
				t.Errorf("%s has labels of replica and model: %v", metric, labels)
				break
			}
			if labels["otel_metric_overflow"] != "" {
				t.Errorf("%s has more series than are kept", metric)
			}
			if model != "" && labelled[metric] == nil {
				labelled[metric] = map[string]bool{}
			}
			if model != "" {
				labelled[metric][model] = true
			}
		}
	}
	if most := others + replicas*perReplica + 64*perTimedModel + models*perModel; total > most || total < 64*50 {
		t.Errorf("%d series, want at most %d", total, most)
	}
	for metric, want := range map[string]int{"kvpilot_router_requests_total": models + 1, "kvpilot_router_ttft_seconds_count": 65, "gen_ai_server_request_duration_seconds_count": 65} {
		if n := len(labelled[metric]); n != want || !labelled[metric]["other"] {
			t.Errorf("%s has %d models, other among them: %v; want %d", metric, n, labelled[metric]["other"], want)
		}
	}
	if n := len(all["kvpilot_registry_replica_state"]); n != replicas {
		t.Errorf("%d replicas have a state", n)
	}
	t.Logf("%d series of %d replicas and %d models", total, replicas, models)
}
