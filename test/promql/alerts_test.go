package promql

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"go.yaml.in/yaml/v2"
)

// casesFile is deploy/prometheus/alerts_test.yml in the form that promtool reads.
type casesFile struct {
	RuleFiles []string       `yaml:"rule_files"`
	Interval  model.Duration `yaml:"evaluation_interval"`
	Tests     []ruleCase     `yaml:"tests"`
}

// ruleCase is one set of series, with the alerts and values that follow from them.
type ruleCase struct {
	Interval model.Duration `yaml:"interval"`
	Series   []struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	Alerts []struct {
		At     model.Duration `yaml:"eval_time"`
		Name   string         `yaml:"alertname"`
		Firing []struct {
			Labels      map[string]string `yaml:"exp_labels"`
			Annotations map[string]string `yaml:"exp_annotations"`
		} `yaml:"exp_alerts"`
	} `yaml:"alert_rule_test"`
	Values []struct {
		At      model.Duration `yaml:"eval_time"`
		Expr    string         `yaml:"expr"`
		Samples []struct {
			Labels string  `yaml:"labels"`
			Value  float64 `yaml:"value"`
		} `yaml:"exp_samples"`
	} `yaml:"promql_expr_test"`
}

// end is when the last check of a case is due.
func (c ruleCase) end() (end time.Duration) {
	for _, a := range c.Alerts {
		end = max(end, time.Duration(a.At))
	}
	for _, v := range c.Values {
		end = max(end, time.Duration(v.At))
	}
	return end
}

// TestAlertsFireWhenTheyShould runs the cases of promtool with Prometheus' own rules and engine.
func TestAlertsFireWhenTheyShould(t *testing.T) {
	text, err := os.ReadFile(deploy + "prometheus/alerts_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file casesFile
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		t.Fatal(err)
	}
	for i := range file.RuleFiles {
		file.RuleFiles[i] = deploy + "prometheus/" + file.RuleFiles[i]
	}
	fired, silent := map[string]bool{}, map[string]bool{}
	for i, one := range file.Tests {
		name := fmt.Sprint(i)
		for _, a := range one.Alerts {
			name = fmt.Sprintf("%d %s", i, a.Name)
			if len(a.Firing) > 0 {
				fired[a.Name] = true
			} else {
				silent[a.Name] = true
			}
		}
		t.Run(name, func(t *testing.T) { one.run(t, file) })
	}
	for _, g := range groups(t, "alerts.yml", parser.NewParser(parser.Options{})) {
		for _, rule := range g.Rules {
			if !fired[rule.Alert] || !silent[rule.Alert] {
				t.Errorf("%s has a case in which it fires: %v, and one in which it does not: %v", rule.Alert, fired[rule.Alert], silent[rule.Alert])
			}
		}
	}
}

// run evaluates the rules from the beginning to the last check.
func (c ruleCase) run(t *testing.T, file casesFile) {
	load := fmt.Sprintf("load %s\n", c.Interval)
	for _, s := range c.Series {
		load += fmt.Sprintf("  %s %s\n", s.Series, s.Values)
	}
	store, err := promqltest.NewLazyLoader(load, promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	query := rules.EngineQueryFunc(store.QueryEngine(), store.Storage())
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: query, Appendable: store.Storage(), Context: t.Context(), Logger: slog.New(slog.DiscardHandler), Parser: parser.NewParser(parser.Options{}),
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {},
	})
	all, errs := manager.LoadGroups(time.Duration(c.Interval), labels.EmptyLabels(), "", nil, false, file.RuleFiles...)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, g := range all {
		for _, r := range g.AlertingRules() {
			r.SetRestored(true)
		}
	}
	begin := time.Unix(0, 0).UTC()
	for now := time.Duration(0); now <= c.end(); now += time.Duration(file.Interval) {
		at := begin.Add(now)
		store.WithSamplesTill(at, func(err error) {
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range slices.Backward(slices.Sorted(maps.Keys(all))) { // the rules before the alerts
				all[key].Eval(store.Context(), at)
				for _, r := range all[key].Rules() {
					if r.LastError() != nil {
						t.Fatalf("%s at %s: %v", r.Name(), now, r.LastError())
					}
				}
			}
		})
		c.compare(t, now, all, func(expr string) (string, error) {
			v, err := query(t.Context(), expr, at)
			var lines []string
			for _, s := range v {
				lines = append(lines, fmt.Sprintf("%s %.6g", s.Metric, s.F))
			}
			slices.Sort(lines)
			return strings.Join(lines, "\n"), err
		})
	}
}

// compare makes the checks that are due.
func (c ruleCase) compare(t *testing.T, now time.Duration, all map[string]*rules.Group, ask func(string) (string, error)) {
	t.Helper()
	for _, a := range c.Alerts {
		if time.Duration(a.At) != now {
			continue
		}
		var got, want []string
		for _, g := range all {
			for _, r := range g.AlertingRules() {
				for _, active := range r.ActiveAlerts() {
					if r.Name() == a.Name && active.State == rules.StateFiring {
						got = append(got, fmt.Sprint(active.Labels, active.Annotations))
					}
				}
			}
		}
		for _, one := range a.Firing {
			named := maps.Clone(one.Labels)
			named["alertname"] = a.Name
			want = append(want, fmt.Sprint(labels.FromMap(named), labels.FromMap(one.Annotations)))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s after %s:\n%s\nwant:\n%s", a.Name, now, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	for _, v := range c.Values {
		if time.Duration(v.At) != now {
			continue
		}
		var want []string
		for _, s := range v.Samples {
			metric := labels.EmptyLabels()
			if s.Labels != "" {
				var err error
				if metric, err = parser.NewParser(parser.Options{}).ParseMetric(s.Labels); err != nil {
					t.Fatal(err)
				}
			}
			want = append(want, fmt.Sprintf("%s %.6g", metric, s.Value))
		}
		slices.Sort(want)
		if got, err := ask(v.Expr); err != nil || got != strings.Join(want, "\n") {
			t.Errorf("%s after %s: %s %v\nwant:\n%s", v.Expr, now, got, err, strings.Join(want, "\n"))
		}
	}
}
