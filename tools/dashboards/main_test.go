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
