// Command dashboards writes deploy/grafana/dashboards/kvpilot.json from the list of panels below:
// a dashboard's JSON is mostly repetition, and nobody should edit it by hand.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// panel is one chart: expressions with their legends.
type panel struct {
	title, unit, text string
	queries           [][2]string
	exemplars         bool
}

// row is a section of the dashboard.
type row struct {
	title  string
	panels []panel
}

const rate = "[$__rate_interval]"

func quantiles(metric, by string) [][2]string {
	var list [][2]string
	for _, q := range []string{"0.5", "0.9", "0.99"} {
		list = append(list, [2]string{fmt.Sprintf("histogram_quantile(%s, sum by (le%s) (rate(%s_bucket%s)))", q, by, metric, rate), "p" + q[2:]})
	}
	list[0][1] = "p50"
	list[1][1] = "p90"
	return list
}

func rows() []row {
	return []row{
		{"What users feel", []panel{
			{title: "Time to first token", unit: "s", queries: quantiles("kvpilot_router_ttft_seconds", ""), exemplars: true, text: "An exemplar's dot leads to its trace."},
			{title: "Time per output token", unit: "s", queries: quantiles("kvpilot_router_time_per_output_token_seconds", "")},
			{title: "Requests by status", unit: "reqps", queries: [][2]string{{"sum by (status) (rate(kvpilot_router_requests_total" + rate + "))", "{{status}}"}}},
			{title: "Cached share of prompt tokens", unit: "percentunit", queries: [][2]string{
				{`sum(rate(kvpilot_router_tokens_total{kind="cached"}` + rate + `)) / sum(rate(kvpilot_router_tokens_total{kind="prompt"}` + rate + `))`, "found by the engines"},
				{`sum(rate(kvpilot_router_tokens_total{kind="overlap"}` + rate + `)) / sum(rate(kvpilot_router_tokens_total{kind="prompt"}` + rate + `))`, "predicted"},
			}},
		}},
		{"The choice", []panel{
			{title: "kvpilot's own time", unit: "s", queries: quantiles("kvpilot_router_overhead_seconds", ""), exemplars: true},
			{title: "Decisions by reason", unit: "reqps", queries: [][2]string{{"sum by (policy, reason) (rate(kvpilot_decisionlog_decisions_total" + rate + "))", "{{policy}} {{reason}}"}}},
			{title: "Waiting in the router", unit: "s", queries: quantiles("kvpilot_router_held_seconds", "")},
			{title: "Actual over predicted first token", unit: "none", queries: quantiles("kvpilot_decisionlog_ttft_ratio", "")},
			{title: "Regret of served choices", unit: "s", queries: quantiles("kvpilot_decisionlog_regret_seconds", "")},
			{title: "Retries by cause", unit: "reqps", queries: [][2]string{{"sum by (outcome) (rate(kvpilot_router_retries_total" + rate + "))", "{{outcome}}"}}},
		}},
		{"Replicas and reservations", []panel{
			{title: "Replicas by state", unit: "none", queries: [][2]string{{"sum by (state) (kvpilot_registry_replicas)", "{{state}}"}}},
			{title: "Reservations", unit: "none", queries: [][2]string{{"sum(kvpilot_load_reservations)", "booked"}, {"sum(kvpilot_router_requests_in_flight)", "in flight"}}},
			{title: "Learned prefill rate", unit: "none", queries: [][2]string{{"kvpilot_chooser_prefill_rate_per_second", "{{replica}}"}}, text: "Tokens per second."},
			{title: "Attempts by outcome", unit: "reqps", queries: [][2]string{{"sum by (outcome) (rate(kvpilot_upstream_attempts_total" + rate + "))", "{{outcome}}"}}},
		}},
		{"Events and index", []panel{
			{title: "Blocks stored and removed", unit: "none", queries: [][2]string{{"sum(rate(kvpilot_kvindex_stored_total" + rate + "))", "stored"}, {"sum(rate(kvpilot_kvindex_removed_total" + rate + "))", "removed"}}},
			{title: "Event lag", unit: "s", queries: quantiles("kvpilot_kvevents_lag_seconds", "")},
			{title: "Gaps, replays, resets", unit: "none", queries: [][2]string{
				{"sum(rate(kvpilot_kvevents_gaps_total" + rate + "))", "gaps"}, {"sum(rate(kvpilot_kvevents_replays_total" + rate + "))", "replays"}, {"sum(rate(kvpilot_kvevents_resets_total" + rate + "))", "resets"},
			}},
			{title: "Index memory", unit: "bytes", queries: [][2]string{{"sum(kvpilot_kvindex_memory_bytes)", "memory"}}},
		}},
		{"Tokenization", []panel{
			{title: "Time until ids are known", unit: "s", queries: quantiles("kvpilot_router_tokenize_seconds", "")},
			{title: "Where ids come from", unit: "reqps", queries: [][2]string{{"sum by (source, reason) (rate(kvpilot_tokenizer_encodings_total" + rate + "))", "{{source}} {{reason}}"}}},
			{title: "Calls to replicas", unit: "s", queries: quantiles("kvpilot_tokenizer_call_duration_seconds", "")},
			{title: "Failures and mismatches", unit: "none", queries: [][2]string{{"sum(rate(kvpilot_tokenizer_endpoint_failures_total" + rate + "))", "failed calls"}, {"sum(rate(kvpilot_tokenizer_parity_mismatches_total" + rate + "))", "mismatches"}}},
		}},
	}
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: dashboards FILE")
		os.Exit(2)
	}
	text, err := json.MarshalIndent(dashboard(), "", " ")
	if err == nil {
		err = os.WriteFile(os.Args[1], append(text, '\n'), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dashboards:", err)
		os.Exit(1)
	}
}

type object = map[string]any

func dashboard() object {
	var panels []object
	id, y := 0, 0
	source := object{"type": "prometheus", "uid": "prometheus"}
	for _, r := range rows() {
		id++
		panels = append(panels, object{"id": id, "type": "row", "title": r.title, "collapsed": false, "gridPos": object{"h": 1, "w": 24, "x": 0, "y": y}})
		y++
		for i, p := range r.panels {
			id++
			var targets []object
			for n, q := range p.queries {
				targets = append(targets, object{"refId": string(rune('A' + n)), "expr": q[0], "legendFormat": q[1], "exemplar": p.exemplars, "datasource": source})
			}
			panels = append(panels, object{
				"id": id, "type": "timeseries", "title": p.title, "description": p.text, "datasource": source, "targets": targets,
				"gridPos":     object{"h": 8, "w": 12, "x": 12 * (i % 2), "y": y + 8*(i/2)},
				"fieldConfig": object{"defaults": object{"unit": p.unit, "min": 0, "custom": object{"fillOpacity": 8, "showPoints": "never"}}, "overrides": []any{}},
				"options":     object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi"}},
			})
		}
		y += 8 * ((len(r.panels) + 1) / 2)
	}
	return object{
		"uid": "kvpilot", "title": "kvpilot", "tags": []string{"kvpilot"}, "schemaVersion": 39, "refresh": "5s",
		"time": object{"from": "now-15m", "to": "now"}, "panels": panels, "templating": object{"list": []any{}}, "editable": true,
	}
}
