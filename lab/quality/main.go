// Command quality plays traces under all policies. It writes every table to docs/quality-results.txt
// and their summary between the marks of docs/quality.md.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/sim/replay"
)

const (
	seeds = 3
	// block is the block size in tokens: the size of the traces' chunks, for speed.
	block    = 512
	patience = 20
	begins   = "<!-- make quality begins -->\n"
	ends     = "<!-- make quality ends -->\n"
)

// game is a trace on a fleet at several loads.
type game struct {
	file, generate     string // one of them
	requests, replicas int
	loads              []float64
}

func games() []game {
	const conversation, arxiv = "mooncake_conversation_trace.jsonl.gz", "mooncake_arxiv_first1000.jsonl.gz"
	both := []float64{0.7, 0.95}
	return []game{
		{file: conversation, replicas: 8, loads: both},
		{file: conversation, replicas: 64, loads: both},
		{file: arxiv, replicas: 8, loads: both},
		{generate: "conv", requests: 6000, replicas: 8, loads: both},
		{generate: "hotdoc", requests: 6000, replicas: 8, loads: both},
		{generate: "onedoc", requests: 6000, replicas: 8, loads: []float64{0.7}},
		{generate: "synth", requests: 6000, replicas: 8, loads: both},
		{generate: "agent", requests: 4000, replicas: 8, loads: []float64{0.6}},
	}
}

func (g *game) options(dir string) (replay.Options, error) {
	o := replay.Options{Engines: replay.Engines{Replicas: g.replicas, Profile: replay.Profiles()[0], Delays: replay.LocalDelays(), Block: block}, Rules: replay.Rules{Policies: decision.Policies()}, Runs: replay.Runs{Seeds: seeds, Patience: patience}}
	var err error
	if g.file != "" {
		o.AtLeast = replay.FewestRequests
		o.Trace, err = replay.ReadTrace(filepath.Join(dir, g.file))
	} else {
		o.Trace, err = replay.Generate(g.generate, g.requests, 1)
	}
	return o, err
}

func main() {
	dir := flag.String("traces", "../shared/traces", "folder of the public traces")
	docs := flag.String("docs", "docs", "folder to write to")
	flag.Parse()
	if err := run(*dir, *docs, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "quality:", err)
		os.Exit(1)
	}
}

func run(dir, docs string, progress io.Writer) error {
	var tables, summary bytes.Buffer
	summary.WriteString("| trace | replicas | ρ | mean / p99 | next best policy | lead | p99 to the best other's | whole answer | best other's | vs oracle | saturation vs oracle |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, g := range games() {
		began := time.Now()
		o, err := g.options(dir)
		if err != nil {
			return err
		}
		reports, err := replay.PlayLoads(o, g.loads...)
		if err != nil {
			return err
		}
		for _, r := range reports {
			if err := r.Table(&tables); err != nil {
				return err
			}
			tables.WriteByte('\n')
			summary.WriteString(row(r))
		}
		fmt.Fprintf(progress, "%s, %d replicas: %s\n", o.Trace.Name, g.replicas, time.Since(began).Round(time.Second))
	}
	robust, err := robustness(dir)
	if err != nil {
		return err
	}
	summary.WriteString("\n" + robust)
	tables.WriteString(robust)
	if err := os.WriteFile(filepath.Join(docs, "quality-results.txt"), tables.Bytes(), 0o644); err != nil {
		return err
	}
	page := filepath.Join(docs, "quality.md")
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	text, err := between(string(old), summary.String())
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return os.WriteFile(page, []byte(text), 0o644)
}

// row is a report's line of the summary.
func row(r *replay.Report) string {
	own := r.Policies[decision.PredictedTTFT]
	var next decision.Policy
	mean, p99, answer := math.Inf(1), math.Inf(1), math.Inf(1)
	for _, name := range decision.Policies() {
		if p := r.Policies[name]; name != decision.PredictedTTFT && !p.Abandoned {
			if p.Mean < mean {
				next, mean = name, p.Mean
			}
			p99 = min(p99, p.P99)
			answer = min(answer, p.AnswerMean)
		}
	}
	return fmt.Sprintf("| %s | %d | %.2g | **%.2f** / %.1f | %s: %.2f | %.0f %% | %.2f | %.1f | %.1f | %.2f | %.2f |\n",
		strings.TrimSuffix(r.Trace, "_trace"), r.Replicas, r.Load, own.Mean, own.P99, next, mean, 100*(1-own.Mean/mean), own.P99/p99, own.AnswerMean, answer, own.VsOracle, own.SaturationVsOracle)
}

// robustness says what wrong rates and lost events cost on the first game at its first load.
func robustness(dir string) (string, error) {
	g := games()[0]
	o, err := g.options(dir)
	if err != nil {
		return "", err
	}
	o.Policies, o.NoSaturation, o.Load = []decision.Policy{decision.PredictedTTFT}, true, g.loads[0]
	mean := func(bias, loss, delay float64) float64 {
		o.PaceBias, o.EventLoss, o.Delays.Event = bias, loss, max(delay, replay.LocalDelays().Event)
		r, e := replay.Play(o)
		if e != nil {
			err = errors.Join(err, e)
			return 0
		}
		return r.Policies[decision.PredictedTTFT].Mean
	}
	plain := mean(1, 0, 0)
	cost := func(bias, loss, delay float64) float64 { return 100 * (mean(bias, loss, delay)/plain - 1) }
	text := fmt.Sprintf("Mean of %s, %d replicas, ρ %.2g, when the router is wrong: prefill times believed twice too long %+.0f %%, twice too short %+.0f %%; 1 %% of KV events lost %+.0f %%, 10 %% lost %+.0f %%; events 5 s late %+.0f %%.\n",
		strings.TrimSuffix(o.Trace.Name, "_trace"), g.replicas, o.Load, cost(2, 0, 0), cost(0.5, 0, 0), cost(1, 0.01, 0), cost(1, 0.1, 0), cost(1, 0, 5))
	return text, err
}

// between returns page with the text between the marks replaced.
func between(page, text string) (string, error) {
	head, rest, ok := strings.Cut(page, begins)
	_, tail, ok2 := strings.Cut(rest, ends)
	if !ok || !ok2 {
		return "", errors.New("the marks for the results are missing")
	}
	return head + begins + "\n" + text + "\n" + ends + tail, nil
}
