package main

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRoutersByName(t *testing.T) {
	o := &options{builds: builds{binaries: []string{"old=/tmp/old"}}}
	for name, want := range map[string]subject{
		"kvpilot":                {kind: "kvpilot", processes: 1, binary: "now", product: true},
		"kvpilot:least-tokens@4": {kind: "kvpilot", policy: "least-tokens", processes: 4, binary: "now", product: true},
		"old":                    {kind: "old", processes: 1, binary: "/tmp/old", product: true},
		"vllm-router:kv_aware@2": {kind: "vllm-router", policy: "kv_aware", processes: 2, binary: "now"},
	} {
		s, err := o.parse(name, "now")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		s.name, s.maker = "", nil
		if *s != want {
			t.Errorf("%s: %+v, want %+v", name, *s, want)
		}
	}
	for policy, want := range map[string]string{"": "", "least-tokens": "chooser.policy=least-tokens", "completion": "chooser.objective=completion"} {
		if got := choice(policy); got != want {
			t.Errorf("%q sets %q, want %q", policy, got, want)
		}
	}
	for _, name := range []string{"unheard-of", "kvpilot@0", "kvpilot@x"} {
		if s, err := o.parse(name, "now"); err == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestTunedPeersHaveThresholdsOfASmallFleet(t *testing.T) {
	for policy, want := range map[string]string{"cache_aware": "--policy cache_aware --host", tuned: "--policy cache_aware --balance-abs-threshold 4 --balance-rel-threshold 1.2 --host"} {
		for _, kind := range []string{"smg", "sglang-router"} {
			if got := strings.Join(common(&subject{kind: kind, policy: policy}, &fleet{urls: []string{"http://a"}}, port{}), " "); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "--worker-urls http://a") {
				t.Errorf("%s:%s starts with %s", kind, policy, got)
			}
		}
	}
}

func TestFiguresAreVoidWhenTheMachineDidNotKeepUp(t *testing.T) {
	good := strain{MachineBusy: 0.5, StepLate: 0.0004, PlayerLate: 0.01}
	if void := good.judge(0.02); len(void) > 0 {
		t.Errorf("%v", void)
	}
	for _, s := range []strain{{MachineBusy: 0.99}, {Slow: 0.05}, {StepLate: 0.004}, {PlayerLate: 0.2}, {RouterCores: 1000}} {
		if void := s.judge(0.02); len(void) != 1 {
			t.Errorf("%+v: %v", s, void)
		}
	}
	first := func(ttft float64, void ...string) *figures { return &figures{times: times{TTFT: ttft}, Void: void} }
	m := average([]*figures{first(9, "busy"), first(1), first(3)})
	if m.TTFT != 2 || len(m.Void) > 0 {
		t.Errorf("a void run counts: %+v", m)
	}
	if m := average([]*figures{first(9, "busy")}); m.TTFT != 9 || len(m.Void) != 1 {
		t.Errorf("nothing but void runs: %+v", m)
	}
}

// sample is a report of two cells.
func sample() *report {
	row := func(name string, product bool, ttft, whole float64, void ...string) *rows {
		f := &figures{times: times{TTFT: ttft, Whole: whole}, work: work{Cached: 0.5}, Void: void}
		return &rows{Router: name, Product: product, Runs: []*figures{f}, Mean: f}
	}
	return &report{
		Command: "go run", Versions: map[string]string{"go": "1"},
		Cells: []*cell{
			{Trace: "chat", Load: 0.9, Replay: &played{TTFT: 1, Cached: 0.5}, Results: []*rows{row("kvpilot", true, 1.1, 5), row("other", false, 2, 4), row("quick", false, 0.1, 1, "busy")}},
			{Trace: "a<b", Load: 0.6, Replay: &played{TTFT: 2, Cached: 0.5}, Results: []*rows{row("kvpilot", true, 1, 5), row("other", false, 0.5, 6), {Router: "gone", Error: "ended"}}},
		},
	}
}

func TestSeveralRunsAreOneReport(t *testing.T) {
	var files []string
	for i, replicas := range []int{4, 8} {
		r := sample()
		r.out, r.Replicas, r.Seconds = t.TempDir(), replicas, float64(60*(i+1))
		if err := r.write(); err != nil {
			t.Fatal(err)
		}
		files = append(files, filepath.Join(r.out, "results.json"))
	}
	page := filepath.Join(t.TempDir(), "real.md")
	if err := render(&options{results: results{render: strings.Join(files, ","), markdown: page}}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"played with 4 replicas, 60 s", "played with 8 replicas, 120 s", "in 2 of 4 cells"} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("the report has no %q:\n%s", want, raw)
		}
	}
}

func TestTheReport(t *testing.T) {
	dir := t.TempDir()
	r := sample()
	r.out = dir
	readme := filepath.Join(dir, "README.md")
	if err := os.WriteFile(readme, []byte("a\n"+readmeBegins+"\nold\n"+readmeEnds+"\nb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := errors.Join(r.print(&text), r.write(), r.markdown(filepath.Join(dir, "real.md")), r.readme(readme)); err != nil {
		t.Fatal(err)
	}
	const sentence = "least mean time to the first token in 1 of 2 cells, 0.55 to 2.00 times the best other router's; on these loads its whole answers take at most 1.25 times"
	for _, name := range []string{"real.md", "README.md"} {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(raw), sentence) || strings.Contains(string(raw), "\nold\n") {
			t.Errorf("%s: %s", name, raw)
		}
	}
	for _, want := range []string{sentence, "TTFT +10 %, cached +0.0 points: within", "TTFT -50 %, cached +0.0 points: NOT within", "gone", "busy"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in %s", want, text.String())
		}
	}
	raw, err := os.ReadFile(filepath.Join(dir, "real-ttft.svg"))
	if err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(strings.NewReader(string(raw))); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the plot is no XML: %v", err)
		}
	}
	if n := strings.Count(string(raw), "<circle"); n != 5 {
		t.Errorf("%d points, want 5", n)
	}
}

// TestTheReadmesFiguresAreThoseMeasured holds README.md against docs/quality-real.md: no figure is changed by hand.
func TestTheReadmesFiguresAreThoseMeasured(t *testing.T) {
	read := func(name string) string {
		raw, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	cells := func(line string) []string {
		list := strings.Split(strings.Trim(line, "|"), "|")
		for i := range list {
			list[i] = strings.TrimSpace(list[i])
		}
		return list
	}
	measured := map[string]string{} // mean TTFT by cell and router
	now := ""
	for line := range strings.Lines(read("docs/quality-real.md")) {
		line = strings.TrimSpace(line)
		var trace string
		var load float64
		if n, _ := fmt.Sscanf(line, "## %s load %f", &trace, &load); n == 2 {
			now = fmt.Sprintf("%s, %.1f", (&cell{Trace: strings.TrimSuffix(trace, ",")}).name(), load)
		}
		if row := cells(line); now != "" && len(row) > 10 {
			measured[now+" "+row[0]] = row[1]
		}
	}
	_, block, _ := strings.Cut(read("README.md"), readmeBegins)
	block, _, _ = strings.Cut(block, readmeEnds)
	if !strings.HasPrefix(block, "\n"+readmeIntro+"kvpilot has the least") {
		t.Errorf("README.md begins otherwise: %s", block)
	}
	var routers []string
	rows := 0
	for line := range strings.Lines(block) {
		row := cells(strings.TrimSpace(line))
		switch {
		case row[0] == "load":
			routers = row
		case len(row) == len(routers) && row[0] != "---":
			rows++
			for i, figure := range row[1:] {
				if want := cmp.Or(measured[row[0]+" "+strings.ReplaceAll(routers[i+1], " ", ":")], "–"); figure != want {
					t.Errorf("%s, %s: %s, measured %s", row[0], routers[i+1], figure, want)
				}
			}
		}
	}
	if rows < 8 {
		t.Errorf("%d rows", rows)
	}
}
