package main

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// metricName finds kvpilot's metrics in an expression, without a histogram's endings.
var metricName = regexp.MustCompile(`kvpilot_[a-z_]+`)

func known(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func check(t *testing.T, reference, where, text string) {
	t.Helper()
	for _, name := range metricName.FindAllString(text, -1) {
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			name = strings.TrimSuffix(name, suffix)
		}
		if !strings.Contains(reference, "`"+name+"`") {
			t.Errorf("%s asks for %s, which is not in docs/metrics.md", where, name)
		}
	}
}

func TestEveryPanelIsExplained(t *testing.T) {
	titles := map[string]bool{}
	for _, r := range rows() {
		for _, p := range r.panels {
			if p.text == "" || p.unit == "" || p.unit == "none" || len(p.queries) == 0 {
				t.Errorf("%s: text %q, unit %q, %d queries", p.title, p.text, p.unit, len(p.queries))
			}
			if titles[p.title] {
				t.Errorf("there are two panels %q", p.title)
			}
			titles[p.title] = true
		}
	}
}

// TestEveryAlertIsTestedAndExplained looks for each in the cases that promtool runs and in the page
// for those who are woken.
func TestEveryAlertIsTestedAndExplained(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	alerts := regexp.MustCompile(`(?m)^ *- alert: (\w+)$`).FindAllStringSubmatch(read("../../deploy/prometheus/alerts.yml"), -1)
	if len(alerts) < 10 {
		t.Fatalf("found %d alerts", len(alerts))
	}
	cases, page := read("../../deploy/prometheus/alerts_test.yml"), read("../../docs/operations.md")
	for _, a := range alerts {
		if !strings.Contains(cases, "alertname: "+a[1]+"\n        exp_alerts:\n          - exp_labels") || !strings.Contains(cases, "alertname: "+a[1]+", exp_alerts: []") {
			t.Errorf("%s has no case in which it fires, or none in which it does not", a[1])
		}
		if !strings.Contains(page, "`"+a[1]+"`") {
			t.Errorf("%s is not explained in docs/operations.md", a[1])
		}
	}
}

func TestEveryPanelAsksForMetricsThatExist(t *testing.T) {
	reference := known(t)
	for _, r := range rows() {
		for _, p := range r.panels {
			for _, q := range p.queries {
				check(t, reference, p.title, q[0])
			}
		}
	}
}

func TestEveryRuleAsksForMetricsThatExist(t *testing.T) {
	reference := known(t)
	for _, file := range []string{"rules.yml", "alerts.yml"} {
		text, err := os.ReadFile("../../deploy/prometheus/" + file)
		if err != nil {
			t.Fatal(err)
		}
		check(t, reference, file, string(text))
	}
}

func TestTheDashboardIsUpToDate(t *testing.T) {
	text, err := os.ReadFile("../../deploy/grafana/dashboards/kvpilot.json")
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.MarshalIndent(dashboard(), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != string(want)+"\n" {
		t.Error("deploy/grafana/dashboards/kvpilot.json differs: run make docs and commit it")
	}
}
