// Command dashboards writes deploy/grafana/dashboards/kvpilot.json from the list of panels below:
// a dashboard's JSON is mostly repetition and must not be edited by hand.
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
	// alarm draws a line where an alert begins; zero draws none.
	alarm float64
}

// row is a section of the dashboard.
type row struct {
	title  string
	panels []panel
}

const rate = "[$__rate_interval]"

// ours leaves only routers of a metric that every process has, whatever their job is called.
const ours = " * on (job, instance) group_left (version) kvpilot_build_info"

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
			{title: "Time to first token", unit: "s", text: "From a request's first byte to the first content of its streamed answer. An exemplar's dot leads to its trace.", queries: quantiles("kvpilot_router_ttft_seconds", ""), exemplars: true},
			{title: "Time per output token", unit: "s", text: "The mean time between the output tokens of each streamed answer.", queries: quantiles("kvpilot_router_time_per_output_token_seconds", "")},
			{title: "First token by model", unit: "s", text: "The slowest hundredth of each model's times to first token; other is requests for no served model.", queries: [][2]string{{"histogram_quantile(0.99, sum by (le, model) (rate(kvpilot_router_ttft_seconds_bucket" + rate + ")))", "{{model}}"}}},
			{title: "Time of whole requests", unit: "s", text: "From a request's first byte to its answer's last, streamed or not.", queries: quantiles("kvpilot_router_request_duration_seconds", ""), exemplars: true},
			{title: "Requests by status", unit: "reqps", text: "Ended requests by HTTP status; 499 is a client that left.", queries: [][2]string{{"sum by (status) (rate(kvpilot_router_requests_total" + rate + "))", "{{status}}"}}},
			{title: "Cached share of prompt tokens", unit: "percentunit", text: "What engines found in their caches, of all prompt tokens, and what the router predicted. Predicted above found: operations.md, 6 and 7.", queries: [][2]string{
				{`sum(rate(kvpilot_router_tokens_total{kind="cached"}` + rate + `)) / sum(rate(kvpilot_router_tokens_total{kind="prompt"}` + rate + `))`, "found by the engines"},
				{`sum(rate(kvpilot_router_tokens_total{kind="overlap"}` + rate + `)) / sum(rate(kvpilot_router_tokens_total{kind="prompt"}` + rate + `))`, "predicted"},
			}},
		}},
		{"The choice", []panel{
			{title: "kvpilot's own time", unit: "s", text: "From a request's arrival until it left for its replica, without waiting for a tokenizer or in the hold queue.", queries: quantiles("kvpilot_router_overhead_seconds", ""), exemplars: true},
			{title: "Decisions by reason", unit: "reqps", text: "Which rule chose, and why. Fallbacks and dry runs are among them.", queries: [][2]string{{"sum by (policy, reason) (rate(kvpilot_decisionlog_decisions_total" + rate + "))", "{{policy}} {{reason}}"}}},
			{title: "Waiting in the router", unit: "s", text: "Time in the hold queue, while every suitable replica was busy.", queries: quantiles("kvpilot_router_held_seconds", "")},
			{title: "Actual over predicted first token", unit: "short", text: "1 is a perfect prediction; far above 1 the replica is slower than it was.", queries: quantiles("kvpilot_decisionlog_ttft_ratio", "")},
			{title: "Regret of served choices", unit: "s", text: "How much later the first token was predicted where requests went than at the fastest candidate: what fairness to later requests costs.", queries: quantiles("kvpilot_decisionlog_regret_seconds", "")},
			{title: "Faults by cause", unit: "reqps", text: "Attempts that failed, by the party at fault. Only network, replica and rank count against a replica.", queries: [][2]string{{"sum by (cause) (rate(kvpilot_router_faults_total" + rate + "))", "{{cause}}"}}},
			{title: "Retries by cause", unit: "reqps", text: "Attempts on another replica, by the outcome of the previous attempt.", queries: [][2]string{{"sum by (outcome) (rate(kvpilot_router_retries_total" + rate + "))", "{{outcome}}"}}},
			{title: "Streams resumed elsewhere", unit: "reqps", text: "Streams that lost their replica after their first byte, by outcome; by cause, those that continue elsewhere, and those that were lost: their clients got an error.", queries: [][2]string{
				{"sum by (result) (rate(kvpilot_router_resumes_total" + rate + "))", "{{result}}"},
				{`sum by (cause) (rate(kvpilot_router_interrupted_total{result="continued"}` + rate + `))`, "continued: {{cause}}"},
				{`sum by (kind, cause) (rate(kvpilot_router_interrupted_total{result="lost"}` + rate + `)) > 0 or on () label_replace(vector(0), "kind", "none", "", "")`, "lost: {{kind}} {{cause}}"},
			}},
		}},
		{"Replicas and reservations", []panel{
			{title: "Replicas by state", unit: "short", text: "Only ready replicas get requests.", queries: [][2]string{{"sum by (state) (kvpilot_registry_replicas)", "{{state}}"}}},
			{title: "Replicas that are not ready", unit: "short", text: "By name: starting, draining or unhealthy at one of the routers.", queries: [][2]string{{`max by (replica, state) (kvpilot_registry_replica_state{state!="ready"}) or on () label_replace(vector(0), "replica", "none", "", "")`, "{{replica}} {{state}}"}}},
			{title: "Reservations", unit: "short", text: "Load that is booked, and requests under way. Bookings far above requests are callers of ChooseReplica.", queries: [][2]string{{"sum(kvpilot_load_reservations)", "booked"}, {"sum(kvpilot_router_requests_in_flight)", "in flight"}}},
			{title: "Learned prefill rate", unit: "short", text: "Prompt tokens per second of each rank, as learned from first tokens.", queries: [][2]string{{"kvpilot_chooser_prefill_rate_per_second", "{{replica}}"}}},
			{title: "Age of the oldest reservation", unit: "s", alarm: 3600, text: "By replica. Above an hour it is a very long answer, or a booking that its caller forgot.", queries: [][2]string{{"max by (replica) (kvpilot_load_reservation_age_seconds)", "{{replica}}"}}},
			{title: "Breakers that are not closed", unit: "short", text: "open: requests to the replica failed, and it gets none; trial: it is tried again.", queries: [][2]string{{`sum by (replica, state) (kvpilot_upstream_breaker_state{state!="closed"}) or on () label_replace(vector(0), "replica", "none", "", "")`, "{{replica}} {{state}}"}}},
			{title: "Output tokens compared with equals", unit: "short", text: "Time of each rank's output tokens divided by that of its equals under the same load. From 3 on the rank is avoided.", queries: [][2]string{{"kvpilot_chooser_slowness_ratio", "{{replica}} {{rank}}"}}},
			{title: "Ranks that are avoided", unit: "short", text: "slow: output tokens take much longer than those of equals; empty: empty answers where others give some; unproven: answers do not show as cached what is claimed; stalled: no progress.", queries: [][2]string{
				{`sum by (replica, suspicion) (kvpilot_chooser_suspect_ratio > 0) or on () label_replace(vector(0), "replica", "none", "", "")`, "{{replica}} {{suspicion}}"}, {`sum by (replica) (kvpilot_chooser_stalled > 0) or on () label_replace(vector(0), "replica", "none", "", "")`, "{{replica}} stalled"},
			}},
			{title: "Faults by replica", unit: "reqps", text: "Attempts that failed by the fault of their network, replica or rank.", queries: [][2]string{{"sum by (replica) (rate(kvpilot_upstream_replica_faults_total" + rate + "))", "{{replica}}"}}},
			{title: "Agents' programs", unit: "short", text: "placed: the context has a claim on a rank's memory; paused: it lost that between two calls; waiting: no rank has memory for it. And the replicas that would have memory for all, of pools where some wait.", queries: [][2]string{{"sum by (state) (kvpilot_chooser_programs)", "{{state}}"}, {"sum(kvpilot_chooser_program_replicas_needed)", "replicas needed"}}},
			{title: "Empty answers", unit: "reqps", text: "Answers without a token, by what another replica gave: retried counts against the replica, agreed is the request's doing, passed could not be compared.", queries: [][2]string{{"sum by (result) (rate(kvpilot_router_empty_answers_total" + rate + "))", "{{result}}"}}},
			{title: "Attempts by outcome", unit: "reqps", text: "Requests sent to replicas, by outcome up to the header of the answer.", queries: [][2]string{{"sum by (outcome) (rate(kvpilot_upstream_attempts_total" + rate + "))", "{{outcome}}"}}},
		}},
		{"Events and index", []panel{
			{title: "Blocks stored and removed", unit: "ops", text: "What the replicas' KV events say, in blocks per second.", queries: [][2]string{{"sum(rate(kvpilot_kvindex_stored_total" + rate + "))", "stored"}, {"sum(rate(kvpilot_kvindex_removed_total" + rate + "))", "removed"}}},
			{title: "Event lag", unit: "s", text: "From a batch's arrival until the index knows of it.", queries: quantiles("kvpilot_kvevents_lag_seconds", "")},
			{title: "Gaps, replays, resets", unit: "ops", text: "Gaps are missing batches; a replay fills them; a reset forgets a rank's blocks. Per second.", queries: [][2]string{
				{"sum(rate(kvpilot_kvevents_gaps_total" + rate + "))", "gaps"}, {"sum(rate(kvpilot_kvevents_replays_total" + rate + "))", "replays"}, {"sum(rate(kvpilot_kvevents_resets_total" + rate + "))", "resets"},
			}},
			{title: "Index memory", unit: "bytes", text: "What the block index takes, of its budget (kvindex.max_bytes).", queries: [][2]string{{"sum(kvpilot_kvindex_memory_bytes)", "memory"}}},
		}},
		{"The router itself", []panel{
			{title: "Routers that are scraped", unit: "short", text: "By version. It falls when a router is gone or does not answer Prometheus.", queries: [][2]string{{"count by (version) (kvpilot_build_info)", "{{version}}"}}},
			{title: "Processor time", unit: "percentunit", text: "1 is one whole core.", queries: [][2]string{{"rate(process_cpu_seconds_total" + rate + ")" + ours, "{{instance}} {{version}}"}}},
			{title: "Memory", unit: "bytes", text: "What the system gave the process, and what of it is live Go memory.", queries: [][2]string{{"process_resident_memory_bytes" + ours, "{{instance}} resident"}, {"go_memstats_heap_inuse_bytes" + ours, "{{instance}} heap"}}},
			{title: "Requests in the hold queue", unit: "short", text: "Requests that wait for a replica with room.", queries: [][2]string{{"sum(kvpilot_admission_requests)", "waiting"}}},
			{title: "What was given up", unit: "ops", text: "Refusals of the hold queue, spans that were not exported, lines of the decision log that were not written. All should be zero.", queries: [][2]string{
				{"sum by (cause) (rate(kvpilot_admission_refusals_total" + rate + "))", "refused: {{cause}}"}, {"sum(rate(kvpilot_telemetry_spans_dropped_total" + rate + "))", "spans"}, {`sum(rate(kvpilot_decisionlog_dropped_total{by="file"}` + rate + "))", "decisions"},
			}},
		}},
		fleet(),
		{"Tokenization", []panel{
			{title: "Time until ids are known", unit: "s", text: "How long requests wait for their token ids.", queries: quantiles("kvpilot_router_tokenize_seconds", "")},
			{title: "Where ids come from", unit: "reqps", text: "exact_cache and conversation need no replica; none is a prompt without ids, by reason.", queries: [][2]string{{"sum by (source, reason) (rate(kvpilot_tokenizer_encodings_total" + rate + "))", "{{source}} {{reason}}"}}},
			{title: "Calls to replicas", unit: "s", text: "Calls to /render and /tokenize.", queries: quantiles("kvpilot_tokenizer_call_duration_seconds", "")},
			{title: "Failures and mismatches", unit: "ops", text: "Failed calls per second, and prompts whose ids differ from the engine's. Mismatches above zero: operations.md, 7.", queries: [][2]string{{"sum(rate(kvpilot_tokenizer_endpoint_failures_total" + rate + ")) or vector(0)", "failed calls"}, {"sum(rate(kvpilot_tokenizer_parity_mismatches_total" + rate + "))", "mismatches"}}},
		}},
	}
}

// fleet is the row of several routers.
func fleet() row {
	return row{"Routers", []panel{
		{title: "Routers of the fleet", unit: "short", text: "Members by state, as the router that sees the fewest or the most of them does: alive; stranger, with another major wire version; dead, in the last ten minutes and without leaving.", queries: [][2]string{
			{`min(kvpilot_peers_members{state="alive"})`, "alive, at least"}, {`max by (state) (kvpilot_peers_members{state!="alive"})`, "{{state}}"},
		}},
		{title: "Routers that decide", unit: "short", text: "By pool. More than one: the fleet is split. A router shows a pool once it has had a request for it.", queries: [][2]string{{"sum by (pool) (kvpilot_peers_decider)", "{{pool}}"}}},
		{title: "Questions between routers", unit: "reqps", text: "Questions to deciders by outcome, and decisions that a router made alone, by reason. Alone should be zero: fleet.md.", queries: [][2]string{
			{"sum by (outcome) (rate(kvpilot_peers_asks_total" + rate + "))", "{{outcome}}"}, {"sum by (reason) (rate(kvpilot_peers_alone_total" + rate + "))", "alone: {{reason}}"},
		}},
		{title: "Time of a question", unit: "s", text: "From a question to the decider's answer, without the time in the hold queue.", queries: quantiles("kvpilot_peers_ask_duration_seconds", "")},
		{title: "Bookings between routers", unit: "ops", text: "Requests in flight that were reported to a decider that did not know them, after a change of decider or of a connection; lists that a decider asked for again.", queries: [][2]string{
			{"sum(rate(kvpilot_peers_handed_over_total" + rate + "))", "handed over"}, {"sum(rate(kvpilot_peers_resyncs_total" + rate + "))", "lists asked for again"},
		}},
		{title: "Tenants' limits", unit: "ops", text: "Grants from a router's own share because the owner of an account does not answer, and reported tokens that were not charged. Both should be zero.", queries: [][2]string{
			{"sum(rate(kvpilot_tenant_grants_alone_total" + rate + "))", "grants alone"}, {"sum(rate(kvpilot_tenant_tokens_unbelieved_total" + rate + "))", "tokens not charged"},
		}},
		{title: "Refused of other routers", unit: "ops", text: "By reason; the log names the router. All should be zero: fleet.md.", queries: [][2]string{{"sum by (reason) (rate(kvpilot_peers_refused_total" + rate + "))", "{{reason}}"}}},
	}}
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

// field says how a panel draws its values.
func (p panel) field() object {
	custom := object{"fillOpacity": 8, "showPoints": "never"}
	steps := []object{{"color": "green", "value": nil}}
	if p.alarm > 0 {
		custom["thresholdsStyle"] = object{"mode": "line"}
		steps = append(steps, object{"color": "red", "value": p.alarm})
	}
	return object{"unit": p.unit, "min": 0, "custom": custom, "thresholds": object{"mode": "absolute", "steps": steps}}
}

func dashboard() object {
	var panels []object
	id, y := 0, 0
	source := object{"type": "prometheus", "uid": "${datasource}"}
	for _, r := range rows() {
		id++
		panels = append(panels, object{"id": id, "type": "row", "title": r.title, "collapsed": false, "gridPos": object{"h": 1, "w": 24, "x": 0, "y": y}})
		y++
		for i, p := range r.panels {
			id++
			var targets []object
			for n, q := range p.queries {
				targets = append(targets, object{"refId": string(rune('A' + n)), "expr": chosen(q[0]), "legendFormat": q[1], "exemplar": p.exemplars, "datasource": source})
			}
			panels = append(panels, object{
				"id": id, "type": "timeseries", "title": p.title, "description": p.text, "datasource": source, "targets": targets,
				"gridPos":     object{"h": 8, "w": 12, "x": 12 * (i % 2), "y": y + 8*(i/2)},
				"fieldConfig": object{"defaults": p.field(), "overrides": []any{}},
				"options":     object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi"}},
			})
		}
		y += 8 * ((len(r.panels) + 1) / 2)
	}
	return object{
		"uid": "kvpilot", "title": "kvpilot", "tags": []string{"kvpilot"}, "schemaVersion": 39, "refresh": "5s",
		"time": object{"from": "now-15m", "to": "now"}, "panels": panels, "templating": object{"list": variables(source)}, "editable": true,
	}
}
