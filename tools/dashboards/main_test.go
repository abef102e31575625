package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
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

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// alert is one of alerts.yml.
type alert struct {
	Alert       string            `yaml:"alert"`
	Annotations map[string]string `yaml:"annotations"`
}

func alerts(t *testing.T) (list []alert) {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []alert `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "../../deploy/prometheus/alerts.yml")), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		list = append(list, g.Rules...)
	}
	if len(list) < 25 {
		t.Fatalf("found %d alerts", len(list))
	}
	return list
}

func TestEveryAlertIsTested(t *testing.T) {
	cases := read(t, "../../deploy/prometheus/alerts_test.yml")
	for _, a := range alerts(t) {
		if !strings.Contains(cases, "alertname: "+a.Alert+"\n        exp_alerts:\n          - exp_labels") || !strings.Contains(cases, "alertname: "+a.Alert+", exp_alerts: []") {
			t.Errorf("%s has no case in which it fires, or none in which it does not", a.Alert)
		}
	}
}

const docs = "../../docs/"

// sections are the parts of a page of docs/ by the anchors of their headings, as GitHub and MkDocs make them.
func sections(t *testing.T, page string) map[string]string {
	t.Helper()
	list := map[string]string{}
	anchor := ""
	for line := range strings.Lines(read(t, docs+page)) {
		if m := regexp.MustCompile(`^#+ (.+)`).FindStringSubmatch(line); m != nil {
			anchor = strings.ReplaceAll(regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
			continue
		}
		for _, m := range regexp.MustCompile(`<a id="([a-z-]+)">`).FindAllStringSubmatch(line, -1) {
			list[m[1]] += line
		}
		list[anchor] += line
	}
	return list
}

// TestEveryAlertLeadsToWhatToDo follows the links of each alert: to its heading, with an action, and to a panel that the text there names.
func TestEveryAlertLeadsToWhatToDo(t *testing.T) {
	titles := map[string]string{}
	for _, p := range dashboard()["panels"].([]object) {
		if p["type"] != "row" {
			titles[fmt.Sprint(p["id"])] = fmt.Sprint(p["title"])
		}
	}
	runbook := regexp.MustCompile(`^https://github\.com/kvpilot/kvpilot/blob/main/docs/([a-z-]+\.md)#([a-z0-9-]+)$`)
	board := regexp.MustCompile(`^http://localhost:3000/d/kvpilot/kvpilot\?viewPanel=(\d+)(&var-(instance|model|replica)=\{\{ \$labels\.(instance|model|replica) \| urlquery \}\})?$`)
	action := regexp.MustCompile(`(?s)\bDo: \S.{20}`)
	for _, a := range alerts(t) {
		link := runbook.FindStringSubmatch(a.Annotations["runbook_url"])
		if link == nil || link[2] != strings.ToLower(a.Alert) {
			t.Errorf("%s: runbook_url %q leads to no heading of its name", a.Alert, a.Annotations["runbook_url"])
			continue
		}
		text := sections(t, link[1])[link[2]]
		if !action.MatchString(text) {
			t.Errorf("%s: %s#%s does not say what to do: %q", a.Alert, link[1], link[2], text)
		}
		panel := board.FindStringSubmatch(a.Annotations["dashboard_url"])
		if panel == nil || panel[3] != panel[4] {
			t.Errorf("%s: dashboard_url %q leads to no panel", a.Alert, a.Annotations["dashboard_url"])
			continue
		}
		text = strings.Join(strings.Fields(text), " ")
		if title := titles[panel[1]]; title == "" || !strings.Contains(strings.ToLower(text), `panel "`+strings.ToLower(title)+`"`) {
			t.Errorf("%s: dashboard_url leads to panel %q, which its text does not name: %s", a.Alert, title, text)
		}
	}
}

// TestTheLinksOfAlertsExist looks at the links of the section about alerts, and for the pages that annotations and panels name.
func TestTheLinksOfAlertsExist(t *testing.T) {
	page := read(t, docs+"operations.md")
	from, to := strings.Index(page, "\n## The alerts\n"), strings.Index(page, "\n## When replicas fail\n")
	if from < 0 || to < from {
		t.Fatal("operations.md has no section about the alerts")
	}
	links := regexp.MustCompile(`\]\(([a-z0-9/-]+\.md)?(?:#([a-z0-9-]+))?\)`).FindAllStringSubmatch(page[from:to], -1)
	if len(links) < 8 {
		t.Errorf("the section has %d links", len(links))
	}
	for _, link := range links {
		all := sections(t, cmp.Or(link[1], "operations.md"))
		if _, ok := all[link[2]]; !ok && link[2] != "" {
			t.Errorf("%s has no heading for #%s", link[1], link[2])
		}
	}
	texts := read(t, "../../deploy/grafana/dashboards/kvpilot.json")
	for _, a := range alerts(t) {
		texts += a.Annotations["summary"] + a.Annotations["description"]
	}
	for _, name := range regexp.MustCompile(`[A-Za-z0-9/-]+\.md\b`).FindAllString(texts, -1) {
		if _, err := os.Stat(docs + name); err != nil {
			t.Errorf("a description names %s: %v", name, err)
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
