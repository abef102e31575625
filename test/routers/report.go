package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// report is everything that a run of this command found.
type report struct {
	Command  string            `json:"command"`
	When     time.Time         `json:"when"`
	Machine  string            `json:"machine"`
	Versions map[string]string `json:"versions"`
	Skipped  []string          `json:"skipped,omitempty"`
	Replicas int               `json:"replicas"`
	Seconds  float64           `json:"seconds"`
	Speed    float64           `json:"speed"`
	Speeds   []float64         `json:"speeds,omitempty"`
	Rounds   int               `json:"rounds"`
	API      string            `json:"api"`
	Cells    []*cell           `json:"cells"`

	out string
}

func newReport(ctx context.Context, o *options, binary string, subjects []*subject, skipped []string) *report {
	r := &report{
		out:     o.out,
		Command: o.command, When: time.Now().UTC().Truncate(time.Second), Versions: map[string]string{}, Skipped: skipped,
		Replicas: o.replicas, Seconds: o.seconds, Speed: o.speed, Speeds: o.speeds, Rounds: o.rounds, API: o.api,
		Machine: fmt.Sprintf("%d cores, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, cpuName()),
	}
	r.Versions["kvpilot"] = output(ctx, "git", "describe", "--always", "--dirty")
	r.Versions["go"] = runtime.Version()
	for _, s := range subjects {
		if s.version != "" {
			r.Versions[s.kind] = s.version
		} else if s.binary != binary {
			r.Versions[s.kind] = output(ctx, s.binary, "version")
		}
	}
	return r
}

// output is the first line that a command prints; empty when it fails.
func output(ctx context.Context, args ...string) string {
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

func cpuName() string {
	raw, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	for _, line := range strings.Split(string(raw), "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}

// write keeps what is known so far.
func (r *report) write(o *options) error {
	for _, c := range r.Cells {
		for _, row := range c.Results {
			row.Mean = average(row.Runs)
		}
	}
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, "results.json"), append(raw, '\n'), 0o644)
}

// average is the mean of runs that are not void; of all when all are.
func average(runs []*figures) *figures {
	var valid []*figures
	for _, f := range runs {
		if len(f.Void) == 0 {
			valid = append(valid, f)
		}
	}
	var void []string
	if len(valid) == 0 {
		valid = runs
		for _, f := range runs {
			void = append(void, f.Void...)
		}
	}
	if len(valid) == 0 {
		return nil
	}
	m := &figures{Void: void, Told: valid[len(valid)-1].Told, Shares: valid[len(valid)-1].Shares}
	for _, f := range valid {
		m.add(f, 1/float64(len(valid)))
	}
	return m
}

// add adds a share of f's figures.
func (f *figures) add(o *figures, share float64) {
	f.Requests += o.Requests
	f.Errors += o.Errors
	f.Unfinished += o.Unfinished
	f.Stood += o.Stood
	if f.FirstError == "" {
		f.FirstError = o.FirstError
	}
	for _, p := range []struct{ to, from *float64 }{
		{&f.TTFT, &o.TTFT}, {&f.TTFTP50, &o.TTFTP50}, {&f.TTFTP90, &o.TTFTP90}, {&f.TTFTP99, &o.TTFTP99}, {&f.TPOT, &o.TPOT},
		{&f.TPOTP50, &o.TPOTP50}, {&f.Whole, &o.Whole}, {&f.WholeP99, &o.WholeP99}, {&f.Good, &o.Good}, {&f.Goodput, &o.Goodput},
		{&f.Cached, &o.Cached}, {&f.Imbalance, &o.Imbalance}, {&f.RouterCores, &o.RouterCores}, {&f.SimCores, &o.SimCores},
		{&f.PlayerCores, &o.PlayerCores}, {&f.MachineBusy, &o.MachineBusy}, {&f.PlayerLate, &o.PlayerLate}, {&f.StepLate, &o.StepLate},
		{&f.LateSteps, &o.LateSteps}, {&f.Slow, &o.Slow}, {&f.PromptError, &o.PromptError},
	} {
		*p.to += share * *p.from
	}
	f.StepLateMost = max(f.StepLateMost, o.StepLateMost)
}

// print writes the tables for a terminal.
func (r *report) print(out io.Writer) error {
	fmt.Fprintf(out, "\n%s\n%s; %d replicas, speed %g %v, %g s a run, %d rounds\n", r.Command, r.Machine, r.Replicas, r.Speed, r.Speeds, r.Seconds, r.Rounds)
	for name, v := range r.Versions {
		fmt.Fprintf(out, "  %s: %s\n", name, v)
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(out, "  skipped %s\n", s)
	}
	for _, c := range r.Cells {
		fmt.Fprintf(out, "\n%s, load %.2f: %d requests at %.2f/s (full at %.2f/s)\n", c.Trace, c.Load, c.Requests, c.Rate, c.Capacity)
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "router\tTTFT mean\tp50\tp99\tTPOT p50 ms\twhole mean\tp99\tgood %\tcached %\timbalance\terrors\trouter cores\tsims\tplayer\tbusy %\tstep late ms\tsent late ms\t")
		for _, row := range c.Results {
			f := row.Mean
			if f == nil {
				fmt.Fprintf(w, "%s\t%s\t\n", row.Router, row.Error)
				continue
			}
			fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%.1f\t%.0f\t%.2f\t%.1f\t%.0f\t%.1f\t%.2f\t%d\t%.2f\t%.2f\t%.2f\t%.0f\t%.2f\t%.0f\t%s\n", row.Router, f.TTFT, f.TTFTP50, f.TTFTP99, 1000*f.TPOTP50, f.Whole, f.WholeP99,
				100*f.Good, 100*f.Cached, f.Imbalance, f.Errors+f.Unfinished, f.RouterCores, f.SimCores, f.PlayerCores, 100*f.MachineBusy, 1000*f.StepLate, 1000*f.PlayerLate, strings.Join(f.Void, ", "))
		}
		if c.Replay != nil {
			fmt.Fprintf(w, "kvpilot replay\t%.2f\t\t%.1f\t\t\t\t\t%.1f\t%.2f\t\n", c.Replay.TTFT, c.Replay.TTFTP99, 100*c.Replay.Cached, c.Replay.Imbalance)
			fmt.Fprintf(w, "pooled oracle\t%.2f\t\n", c.Replay.Oracle)
		}
		if err := w.Flush(); err != nil {
			return err
		}
		for _, row := range c.Results {
			row.tell(out)
		}
	}
	_, err := fmt.Fprintf(out, "\nresults and logs are in %s\n", r.out)
	return err
}

// tell prints what kvpilot says of its own predictions.
func (row *rows) tell(out io.Writer) {
	if row.Mean == nil || row.Mean.Told == nil {
		return
	}
	t := row.Mean.Told
	fmt.Fprintf(out, "  %s: predicted / actual TTFT p10 %.2f, p50 %.2f, p90 %.2f of %d; held %.2f s on average; learned tokens/s:", row.Router, t.RatioP10, t.RatioP50, t.RatioP90, t.Predictions, t.HeldMean)
	for _, rates := range t.Rates {
		for _, v := range rates {
			fmt.Fprintf(out, " %.1fk", v/1000)
		}
		fmt.Fprint(out, ";")
	}
	fmt.Fprintf(out, " work shares %.2f\n", row.Mean.Shares)
}
