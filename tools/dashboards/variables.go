package main

import (
	"regexp"
	"slices"
	"strings"
)

// byModel and byReplica are the metrics that have the label model or replica and are narrowed by the variable of that name.
var (
	byModel = []string{
		"kvpilot_router_ttft_seconds", "kvpilot_router_time_per_output_token_seconds", "kvpilot_router_request_duration_seconds",
		"kvpilot_router_requests_total", "kvpilot_router_tokens_total",
	}
	byReplica = []string{
		"kvpilot_chooser_prefill_rate_per_second", "kvpilot_chooser_slowness_ratio", "kvpilot_chooser_suspect_ratio", "kvpilot_load_reservation_age_seconds", "kvpilot_upstream_breaker_state",
		"kvpilot_registry_replica_state", "kvpilot_chooser_stalled", "kvpilot_upstream_replica_faults_total",
	}
)

// selector finds a metric and its label matchers in an expression.
var selector = regexp.MustCompile(`\b((?:kvpilot|process|go)_[a-z_]+)(\{[^}]*\})?`)

// chosen narrows each metric of an expression to the selection of the dashboard's variables.
func chosen(expression string) string {
	return selector.ReplaceAllStringFunc(expression, func(found string) string {
		name, matchers, _ := strings.Cut(strings.TrimSuffix(found, "}"), "{")
		list := []string{`instance=~"$instance"`}
		if matchers != "" {
			list = append([]string{matchers}, list...)
		}
		if slices.Contains(byModel, series(name)) {
			list = append(list, `model=~"$model"`)
		}
		if slices.Contains(byReplica, series(name)) {
			list = append(list, `replica=~"$replica"`)
		}
		return name + "{" + strings.Join(list, ",") + "}"
	})
}

// series is a metric's name without a histogram's endings.
func series(name string) string {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return name
}

// variables are the operator's choices at the top of the dashboard: the data source, and which routers, models and replicas.
func variables(source object) []object {
	list := []object{{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": object{"text": "Prometheus", "value": "prometheus"}}}
	for _, v := range [][3]string{
		{"instance", "Router", "label_values(kvpilot_build_info, instance)"},
		{"model", "Model", `label_values(kvpilot_router_requests_total{instance=~"$instance"}, model)`},
		{"replica", "Replica", `label_values(kvpilot_upstream_breaker_state{instance=~"$instance"}, replica)`},
	} {
		list = append(list, object{
			"name": v[0], "label": v[1], "type": "query", "datasource": source, "definition": v[2], "query": object{"query": v[2], "refId": v[0]},
			"refresh": 2, "sort": 1, "multi": true, "includeAll": true, "allValue": ".*", "current": object{"text": "All", "value": "$__all"},
		})
	}
	return list
}
