package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// markdown writes the report and its plots.
func (r *report) markdown(path string) error {
	name := strings.TrimSuffix(filepath.Base(path), ".md")
	var errs []error
	var b strings.Builder
	b.WriteString("# Routers side by side\n\nWritten by `make bench-routers`; do not edit. Real processes in real time: simulated replicas ([simulator.md](simulator.md)), the same requests over HTTP\n" +
		"at the same moments, and in turn each router in front of them. The figures' meaning, and how to play other loads, is at the end.\n\n")
	fmt.Fprintf(&b, "%s\n%s\n\n```\n%s\n```\n\n%s, %s%s.\n", r.sentence(), otherLoads, r.Command, r.When.Format("2006-01-02"), r.Machine, r.common())
	for _, name := range sorted(r.Versions) {
		fmt.Fprintf(&b, "- %s: %s\n", name, r.Versions[name])
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(&b, "- not played: %s\n", s)
	}
	for _, p := range []struct {
		file, title string
		of          func(*figures) float64
	}{
		{"ttft", "Mean time to the first token", func(f *figures) float64 { return f.TTFT }},
		{"whole", "Mean time of whole answers", func(f *figures) float64 { return f.Whole }},
	} {
		file := name + "-" + p.file + ".svg"
		errs = append(errs, os.WriteFile(filepath.Join(filepath.Dir(path), file), []byte(r.plot(p.title, p.of)), 0o644))
		fmt.Fprintf(&b, "\n![%s](%s)\n", p.title, file)
	}
	for _, c := range r.Cells {
		c.markdown(&b, r.out)
	}
	b.WriteString(legend)
	return errors.Join(append(errs, os.WriteFile(path, []byte(b.String()), 0o644))...)
}

// otherLoads says how kvpilot does where nothing was tuned for; docs/performance.md has the figures.
const otherLoads = "kvpilot is developed against these loads. On others first tokens come first or within 1 %, and whole answers take up to 1.15 times as long as " +
	"the best other router's ([performance.md](performance.md#against-other-routers))."

// markdown writes the cell's table without the columns that are empty in all rows; paths below out are shortened.
func (c *cell) markdown(b *strings.Builder, out string) {
	table := [][]string{append(columns(), "router cores", "void")}
	for _, row := range c.Results {
		cells := []string{row.Router, strings.NewReplacer("|", "/", out+"/", "").Replace(row.Error)}
		if f := row.Mean; f != nil {
			cells = append(row.cells(), fmt.Sprintf("%.2f", f.RouterCores), strings.Join(f.Void, ", "))
		}
		table = append(table, append(cells, make([]string, len(table[0])-len(cells))...))
	}
	fmt.Fprintf(b, "\n## %s\n\n", c.title())
	for i, row := range withoutEmpty(table) {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(b, "|%s\n", strings.Repeat("---|", len(row)))
		}
	}
	b.WriteByte('\n')
	for _, line := range c.remarks() {
		fmt.Fprintf(b, "- %s\n", line)
	}
}

// withoutEmpty leaves out the columns that have nothing or 0 below their heading.
func withoutEmpty(table [][]string) [][]string {
	made := make([][]string, len(table))
	for column := range table[0] {
		if slices.ContainsFunc(table[1:], func(row []string) bool { return row[column] != "" && row[column] != "0" }) {
			for i, row := range table {
				made[i] = append(made[i], row[column])
			}
		}
	}
	return made
}

const legend = `
## What the figures mean

- Load is the arrival rate over the rate at which a fleet with one pooled cache is full, for these very requests. Engines are cold when a run begins.
- TTFT, TPOT and whole answers are the client's. Requests without an end when a run is over count with the time they had lasted; failed ones count in no time.
- Good answers have their first token within 2 s and at most 100 ms per further token.
- Cached is the share of prompt tokens by the engines' usage. Imbalance is the most prefill that a replica did over the mean.
- Real processes should be within 15 % and 2 points of the trace player's TTFT and cached share.
- A figure is void when the machine did not keep up: more than 92 % busy, engines that lost 1 % of their time or ended steps late by a tenth of a step, requests sent 100 ms late.
  Means are over the other rounds. A table without the columns failed, unfinished or void has none.
- chat: 200 users of 10 turns at once below one system prompt of 3,000 tokens, each turn with the real answer to the one before; agents: sessions of 6 to 20 turns
  that grow to 100,000 tokens, with think times; hotdoc: documents of 20,000 tokens with Zipf 1.2 popularity; conversation: Mooncake's public trace.

Other routers have their own defaults. vllm-router's kv_aware reads the same KV events as kvpilot; SMG and sglang-router see text only, since their event index wants gRPC engines.
Of Dynamo the selection service is played, behind a small proxy that tokenizes with a replica's /render and forwards. All replicas
hash blocks with one seed (PYTHONHASHSEED in vLLM): with a seed each, Dynamo's index loses most events.

` + "```" + `
go run ./lab/routers -routers kvpilot,kvpilot:least-tokens,vllm-router:kv_aware -traces chat,my-trace.jsonl.gz -loads 0.5,0.8 -seconds 60
go run ./lab/routers -binary old=bin/kvpilot-old -routers kvpilot,old -traces hotdoc -speed 4          # two builds, engines four times as fast
go run ./lab/routers -routers kvpilot -traces conversation -replicas 4 -speeds 1,3 -replay               # engines of two speeds, and what replay says
` + "```" + `
`

// Marks around the text of readme.
const (
	readmeBegins = "<!-- make bench-routers begins -->"
	readmeEnds   = "<!-- make bench-routers ends -->"
)

const readmeIntro = `Mean time to the first token in seconds, measured with real processes in real time: the same requests through each router, before the same
simulated replicas ([all tables](docs/quality-real.md); ` + "`make bench-routers`" + ` repeats it). ` + "`chat, 0.9`" + ` is 90 % of the capacity of a fleet with one pooled cache. `

// readme writes the result in one sentence and one table between the marks.
func (r *report) readme(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(raw), readmeBegins)
	_, after, ends := strings.Cut(rest, readmeEnds)
	if !ok || !ends {
		return fmt.Errorf("%s has no marks %q and %q", path, readmeBegins, readmeEnds)
	}
	text := before + readmeBegins + "\n" + readmeIntro + r.sentence() + "\n\n" + r.summary() + readmeEnds + after
	return os.WriteFile(path, []byte(text), 0o644)
}
