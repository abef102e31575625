package exposition

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"
)

// alias is a metric of kvpilot that the endpoint picker has under other names.
type alias struct {
	from  string   // kvpilot's name
	names []string // the picker's: of Gateway API's inference extension, and of llm-d, which renamed them
	help  string
	of    map[string]string // kvpilot's labels that a series must have, by name
	label func(pool string, m *dto.Metric) []*dto.LabelPair
	where func(m *dto.Metric) bool // nil: all
	mean  bool                     // of the series that become one; otherwise their sum
}

// aliases are the names that mean the same: names and labels come from kubernetes-sigs/gateway-api-inference-extension
// (pkg/epp/metrics) and llm-d/llm-d-router (pkg/epp/metrics) in 2026. Not among them are metrics that kvpilot measures otherwise:
// normalized_time_per_output_token_seconds divides the whole time by the
// tokens, running_requests is by model, and sizes are in bytes.
func aliases() []alias {
	const llmd = "llm_d_router_epp_"
	objective := func(what string) []string { return []string{"inference_objective_" + what, llmd + what} }
	pool := func(what, theirs string) []string { return []string{"inference_pool_" + what, llmd + theirs} }
	extension := func(what string) []string { return []string{"inference_extension_" + what, llmd + what} }
	return []alias{
		{from: "kvpilot_router_requests_total", names: objective("request_total"), help: "Ended requests by model.", label: byModel("model")},
		{from: "kvpilot_router_requests_total", names: objective("request_error_total"), help: "Failed requests by model and reason.", label: byError, where: failed},
		{from: "kvpilot_router_request_duration_seconds", names: objective("request_duration_seconds"), help: "Time of whole requests by model.", label: byModel("model")},
		{from: "kvpilot_router_ttft_seconds", names: objective("request_ttft_seconds"), help: "Time to first token by model.", label: byModel("model")},
		{from: "gen_ai_client_token_usage", names: objective("input_tokens"), help: "Prompt tokens of requests by model.", of: map[string]string{"gen_ai_token_type": "input"}, label: byModel("gen_ai_request_model")},
		{from: "gen_ai_client_token_usage", names: objective("output_tokens"), help: "Generated tokens of requests by model.", of: map[string]string{"gen_ai_token_type": "output"}, label: byModel("gen_ai_request_model")},
		{from: "kvpilot_registry_replicas", names: pool("ready_pods", "ready_endpoints"), help: "Replicas that get requests.", of: map[string]string{"state": "ready"}, label: ofPool("name")},
		{from: "kvpilot_enginestats_kv_usage_ratio", names: pool("average_kv_cache_utilization", "average_kv_cache_utilization"), help: "Share of the KV cache in use, the mean of all ranks.", label: ofPool("name"), mean: true},
		{from: "kvpilot_enginestats_requests", names: pool("average_queue_size", "average_queue_size"), help: "Requests that wait in an engine, the mean of all ranks.", of: map[string]string{"state": "waiting"}, label: ofPool("name"), mean: true},
		{from: "kvpilot_enginestats_requests", names: []string{llmd + "average_running_requests"}, help: "Requests that an engine runs, the mean of all ranks.", of: map[string]string{"state": "running"}, label: ofPool("name"), mean: true},
		{from: "kvpilot_chooser_duration_seconds", names: extension("scheduler_e2e_duration_seconds"), help: "Time to decide and book.", label: func(string, *dto.Metric) []*dto.LabelPair { return nil }},
		{from: "kvpilot_admission_requests", names: extension("flow_control_queue_size"), help: "Requests that wait in the hold queue.", label: ofPool("inference_pool")},
		{from: "kvpilot_admission_bytes", names: extension("flow_control_queue_bytes"), help: "Memory held by the requests in the hold queue.", label: ofPool("inference_pool")},
	}
}

// Table is a Markdown table of the picker's names and kvpilot's, for the reference.
func Table() string {
	var b strings.Builder
	b.WriteString("| the picker's name | is kvpilot's |\n|---|---|\n")
	for _, a := range aliases() {
		from := a.from
		for _, name := range slices.Sorted(maps.Keys(a.of)) {
			from += fmt.Sprintf("{%s=%q}", name, a.of[name])
		}
		how := ""
		if a.mean {
			how = ", the mean"
		}
		fmt.Fprintf(&b, "| `%s` | `%s`%s |\n", strings.Join(a.names, "`, `"), from, how)
	}
	return b.String()
}

// EPP returns the metrics of the gatherer and, in addition, the ones that the endpoint picker of Gateway API's inference extension has
// too, under its names. pool is the name of the inference pool that the replicas stand for.
func EPP(of prometheus.Gatherer, pool string) prometheus.Gatherer {
	all := aliases()
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := of.Gather()
		if err != nil {
			return families, err
		}
		byName := map[string]*dto.MetricFamily{}
		for _, f := range families {
			byName[f.GetName()] = f
		}
		for _, a := range all {
			if f := byName[a.from]; f != nil {
				families = append(families, a.families(f, pool)...)
			}
		}
		slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
		return families, nil
	})
}

// families are f's series under the alias' names; none of its series are, when none is meant.
func (a alias) families(f *dto.MetricFamily, pool string) []*dto.MetricFamily {
	groups := map[string]*group{}
	var order []*group
	for _, m := range f.GetMetric() {
		if !a.means(m) {
			continue
		}
		as := &dto.Metric{Label: a.label(pool, m)}
		g := groups[key(as)]
		if g == nil {
			g = &group{metric: as}
			groups[key(as)] = g
			order = append(order, g)
		}
		g.add(m)
	}
	if len(order) == 0 {
		return nil
	}
	metrics := make([]*dto.Metric, len(order))
	for i, g := range order {
		metrics[i] = g.end(a.mean)
	}
	out := make([]*dto.MetricFamily, len(a.names))
	for i, name := range a.names {
		out[i] = &dto.MetricFamily{Name: proto.String(name), Help: proto.String(a.help + " The same as " + a.from + "."), Type: f.Type, Metric: metrics}
	}
	return out
}

// means reports whether the alias is about this series.
func (a alias) means(m *dto.Metric) bool {
	for name, value := range a.of {
		if valueOf(m, name) != value {
			return false
		}
	}
	return a.where == nil || a.where(m)
}

// valueOf is a series' value of a label, empty without the label.
func valueOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

func pair(name, value string) *dto.LabelPair {
	return &dto.LabelPair{Name: proto.String(name), Value: proto.String(value)}
}

// byModel keeps the model of the label named model. The picker distinguishes a model from the model that it was rewritten to;
// kvpilot's metrics have the served one only.
func byModel(model string) func(string, *dto.Metric) []*dto.LabelPair {
	return func(_ string, m *dto.Metric) []*dto.LabelPair {
		name := valueOf(m, model)
		return []*dto.LabelPair{pair("model_name", name), pair("target_model_name", name)}
	}
}

func byError(_ string, m *dto.Metric) []*dto.LabelPair {
	code, model := valueOf(m, "reason"), valueOf(m, "model")
	if code == "" {
		code = valueOf(m, "status")
	}
	return []*dto.LabelPair{pair("error_code", code), pair("model_name", model), pair("target_model_name", model)}
}

// failed reports whether a series counts failed requests.
func failed(m *dto.Metric) bool {
	status, err := strconv.Atoi(valueOf(m, "status"))
	return err == nil && status >= 400
}

func ofPool(label string) func(string, *dto.Metric) []*dto.LabelPair {
	return func(pool string, _ *dto.Metric) []*dto.LabelPair { return []*dto.LabelPair{pair(label, pool)} }
}
