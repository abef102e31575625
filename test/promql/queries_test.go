package promql

import (
	"encoding/json"
	"log/slog"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

const deploy = "../../deploy/"

// query is one that kvpilot ships.
type query struct{ name, text string }

// panels are the queries of the dashboard, with its variables at "All".
func panels(t *testing.T) []query {
	t.Helper()
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	text, err := os.ReadFile(deploy + "grafana/dashboards/kvpilot.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	variables := []string{"$__rate_interval", "1m", "$__range", "1m", "$__interval", "15s"}
	var all []query
	for _, v := range board.Templating.List {
		variables = append(variables, "$"+v.Name, ".*")
		if m := labelValues.FindStringSubmatch(v.Definition); v.Type == "query" {
			if m == nil {
				t.Fatalf("variable %s: %q is not label_values(selector, label)", v.Name, v.Definition)
			}
			all = append(all, query{"variable " + v.Name, "count by (" + m[2] + ") (" + m[1] + ")"})
		}
	}
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			all = append(all, query{panel.Title, target.Expr})
		}
	}
	for i := range all {
		all[i].text = strings.NewReplacer(variables...).Replace(all[i].text)
	}
	return all
}

var labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)

// groups are the rules of a file.
func groups(t *testing.T, file string, p parser.Parser) []rulefmt.RuleGroup {
	t.Helper()
	all, errs := rulefmt.ParseFile(deploy+"prometheus/"+file, false, model.UTF8Validation, p, slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Fatal(err)
	}
	return all.Groups
}

// mayBeAbsent are metrics that a healthy fleet does not have, with the reason. Their queries say what is then true.
var mayBeAbsent = map[string]string{
	"kvpilot_tokenizer_endpoint_failures_total": "by replica and error, so it begins with the first failure",
}

// mayFire are alerts that depend on this machine's speed, with the reason. TestAlertsFireWhenTheyShould has their cases.
var mayFire = map[string]string{
	"KvpilotPredictionsWrong": "simulated engines are slower than their own predictions where the processors are busy",
}

func TestEveryQueryHasAnAnswer(t *testing.T) {
	f := startFleet(t, 2, "telemetry.metrics.native_histograms=true", "telemetry.metrics.epp_pool=pool")
	p := newPrometheus(t)
	rules, alerts := groups(t, "rules.yml", p.parser), groups(t, "alerts.yml", p.parser)
	for _, r := range f.routers {
		eventually(t, "the engines' events arrive", func() bool {
			f.traffic(t, -1)
			return strings.Contains(get("http://"+r.admin+"/metrics"), "kvpilot_kvevents_lag_seconds_count")
		})
	}
	for round := range 8 {
		f.traffic(t, round)
		p.now = p.now.Add(interval)
		for _, r := range f.routers {
			p.scrape(r.admin)
		}
		for _, g := range rules {
			p.record(g)
		}
	}
	used := map[string]bool{}
	for _, q := range panels(t) {
		v, err := p.ask(q.text)
		if err != nil {
			t.Errorf("%s: %s: %v", q.name, q.text, err)
			continue
		}
		if len(v) == 0 {
			t.Errorf("%s: %s gives nothing", q.name, q.text)
		}
		p.metrics(q, used)
	}
	for _, g := range slices.Concat(rules, alerts) {
		for _, rule := range g.Rules {
			q := query{rule.Record + rule.Alert, rule.Expr}
			v, err := p.ask(q.text)
			switch {
			case err != nil:
				t.Errorf("%s: %s: %v", q.name, q.text, err)
			case rule.Alert != "" && len(v) > 0 && mayFire[rule.Alert] == "" && !strings.Contains(rule.Annotations["summary"], "requests fail"):
				t.Errorf("%s would fire for a healthy fleet: %v", q.name, v)
			case rule.Record != "" && len(v) == 0:
				t.Errorf("%s records nothing", q.name)
			}
			p.metrics(q, used)
		}
	}
	for name := range used {
		if why, known := mayBeAbsent[name]; p.names[name] == known {
			t.Errorf("%s is used; a router has it: %v (%s)", name, p.names[name], why)
		}
	}
	t.Logf("%d metrics are used", len(used))
	p.natives()
	p.pickers()
}

// metrics adds the names of the metrics that a query reads.
func (p *prometheus) metrics(q query, to map[string]bool) {
	expr, err := p.parser.ParseExpr(q.text)
	if err != nil {
		p.t.Errorf("%s: %v", q.name, err)
		return
	}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			to[s.Name] = true
		}
		return nil
	})
}

// natives compares quantiles of native histograms with those of the classic ones: the native one lies in the same classic bucket or beside it.
func (p *prometheus) natives() {
	for _, name := range []string{"kvpilot_router_ttft_seconds", "kvpilot_chooser_duration_seconds", "gen_ai_server_request_duration_seconds"} {
		native, err := p.ask("histogram_quantile(0.5, sum(rate(" + name + "[1m])))")
		if err != nil || len(native) != 1 || math.IsNaN(native[0].F) || native[0].F <= 0 {
			p.t.Errorf("%s: the native median is %v, %v", name, native, err)
			continue
		}
		classic, err := p.ask("histogram_quantile(0.5, sum by (le) (rate(" + name + "_bucket[1m])))")
		if err != nil || len(classic) != 1 || classic[0].F < native[0].F/5 || classic[0].F > native[0].F*5 {
			p.t.Errorf("%s: the classic median is %v, the native one %v, %v", name, classic, native, err)
		}
	}
}

// pickers asks what dashboards and autoscalers for Gateway API's endpoint picker ask.
func (p *prometheus) pickers() {
	for _, text := range []string{
		`sum by (model_name, target_model_name) (rate(inference_objective_request_total[1m]))`,
		`sum by (error_code, model_name) (rate(inference_objective_request_error_total{error_code!=""}[1m]))`,
		`histogram_quantile(0.95, sum by (le) (rate(inference_objective_request_duration_seconds_bucket[1m])))`,
		`histogram_quantile(0.9, sum by (le) (rate(llm_d_router_epp_request_ttft_seconds_bucket{model_name="m"}[1m])))`,
		`sum(rate(inference_objective_input_tokens_sum{model_name="m"}[1m]))`, `sum(rate(llm_d_router_epp_output_tokens_sum[1m]))`,
		`inference_pool_ready_pods{name="pool"} == 2`, `llm_d_router_epp_ready_endpoints{name="pool"} == 2`,
		`inference_pool_average_kv_cache_utilization{name="pool"}`, `inference_pool_average_queue_size{name="pool"}`, `llm_d_router_epp_average_running_requests`,
		`histogram_quantile(0.5, sum by (le) (rate(inference_extension_scheduler_e2e_duration_seconds_bucket[1m])))`,
		`inference_extension_flow_control_queue_size{inference_pool="pool"}`, `llm_d_router_epp_flow_control_queue_bytes`,
	} {
		if v, err := p.ask(text); err != nil || len(v) == 0 {
			p.t.Errorf("%s: %v, %v", text, v, err)
		}
	}
}
