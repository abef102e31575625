package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// kvpilot is the product under test.
type kvpilot struct{ settings []string }

// buildKvpilot makes the binary of the working tree.
func buildKvpilot(ctx context.Context, o *options) (string, error) {
	if o.kvpilot != "" {
		return filepath.Abs(o.kvpilot)
	}
	binary := filepath.Join(o.out, "kvpilot")
	out, err := exec.CommandContext(ctx, "go", "build", "-tags", "grpcnotrace", "-o", binary, "./cmd/kvpilot").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build kvpilot: %w\n%s", err, out)
	}
	return binary, nil
}

func (*kvpilot) install(context.Context, *options) (string, error) { return "", nil }

func (*kvpilot) follows(*subject) bool { return true }

// fleetKey joins the processes of one fleet on this machine.
const fleetKey = "routers of one run on loopback"

// choice is the setting of kvpilot that a subject's policy stands for: that policy, or an objective of the usual one; empty: none.
func choice(policy string) string {
	switch {
	case policy == "":
		return ""
	case decision.Objective(policy).Known():
		return "chooser.objective=" + policy
	}
	return "chooser.policy=" + policy
}

// command starts one router; several processes of a subject are one fleet.
func (k *kvpilot) command(s *subject, f *fleet, at port, dir string) ([]string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: {http: \"127.0.0.1:%d\", grpc: \"127.0.0.1:%d\", admin: \"127.0.0.1:%d\"}\n", at.http, at.extra, at.admin)
	b.WriteString("registry:\n  replicas:\n")
	for n, url := range f.urls {
		fmt.Fprintf(&b, "  - {id: replica-%d, url: %q, events: {endpoint: %q, replay: %q}}\n", n, url, f.events[n], f.replays[n])
	}
	if s.processes > 1 {
		fmt.Fprintf(&b, "fleet: {listen: \"127.0.0.1:%d\", rpc_listen: \"127.0.0.1:%d\", join: [\"127.0.0.1:%d\"], key: %q, name: %q}\n",
			at.gossip, at.peers, at.join, fleetKey, filepath.Base(dir))
	}
	fmt.Fprintf(&b, "decisions: {file: %q, file_max_bytes: 0}\n", filepath.Join(dir, "decisions.jsonl"))
	file := filepath.Join(dir, "kvpilot.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		return nil, err
	}
	args := []string{s.binary, "serve", "--config", file}
	if set := choice(s.policy); set != "" {
		args = append(args, "--set", set)
	}
	for _, set := range k.settings {
		args = append(args, "--set", set)
	}
	return args, nil
}

// forecast is kvpilot's report about its own predictions.
type forecast struct {
	// Ratio quantiles are of predicted over actual time to the first token, for answers that had one.
	Predictions int     `json:"predictions"`
	RatioP10    float64 `json:"ratio_p10"`
	RatioP50    float64 `json:"ratio_p50"`
	RatioP90    float64 `json:"ratio_p90"`
	// Rates are the last learned prefill rates in tokens per second, by replica; one list per router.
	Rates [][]float64 `json:"rates"`
	// HeldMean is the time that requests waited in the router, in seconds, on average.
	HeldMean float64 `json:"held_mean_s"`
}

// entry is the part of a line of the decisions file that matters here: a Decision of the contract.
type entry struct {
	Held       span `json:"held"`
	Candidates []struct {
		Replica string `json:"replica_id"`
		Speed   struct {
			Rate float64 `json:"tokens_per_second"`
		} `json:"speed"`
	} `json:"candidates"`
	Outcome struct {
		TTFT      span `json:"ttft"`
		Predicted span `json:"predicted_ttft"`
	} `json:"outcome"`
}

// span is a duration in the contract's JSON: "0.120s".
type span time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *span) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	*s = span(d)
	return err
}

func (s span) seconds() float64 { return time.Duration(s).Seconds() }

// forecast reads the decisions of all router processes, once these have ended.
func (r *running) forecast(replicas int) (*forecast, error) {
	var ratios []float64
	t := &forecast{}
	held := time.Duration(0)
	for _, dir := range r.dirs {
		rates := make([]float64, replicas)
		err := readEntries(filepath.Join(dir, "decisions.jsonl"), func(e *entry) {
			held += time.Duration(e.Held)
			if e.Outcome.TTFT > 0 && e.Outcome.Predicted > 0 {
				ratios = append(ratios, e.Outcome.Predicted.seconds()/e.Outcome.TTFT.seconds())
			}
			for _, c := range e.Candidates {
				if n, err := strconv.Atoi(strings.TrimPrefix(c.Replica, "replica-")); err == nil && n < replicas && c.Speed.Rate > 0 {
					rates[n] = c.Speed.Rate
				}
			}
		})
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil // another kind of router
		}
		if err != nil {
			return nil, err
		}
		t.Rates = append(t.Rates, rates)
	}
	if len(ratios) == 0 {
		return nil, nil
	}
	slices.Sort(ratios)
	t.Predictions = len(ratios)
	t.RatioP10, t.RatioP50, t.RatioP90 = quantile(ratios, 0.1), quantile(ratios, 0.5), quantile(ratios, 0.9)
	t.HeldMean = held.Seconds() / float64(len(ratios))
	return t, nil
}

func readEntries(path string, on func(*entry)) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, 1<<20), 64<<20)
	for lines.Scan() {
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		on(&e)
	}
	return lines.Err()
}

// quantile of sorted values.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
