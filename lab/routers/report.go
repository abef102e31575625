package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
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

// write keeps the results so far.
func (r *report) write() error {
	for _, c := range r.Cells {
		for _, row := range c.Results {
			row.Mean = average(row.Runs)
		}
	}
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "results.json"), append(raw, '\n'), 0o644)
}

// render reports the results of earlier runs, as one report.
func render(o *options) error {
	var all *report
	files := strings.Split(o.render, ",")
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		r := &report{out: filepath.Dir(file)}
		if err := json.Unmarshal(raw, r); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, c := range r.Cells {
			if len(files) > 1 {
				c.Setting = r.setting()
			}
			for _, row := range c.Results {
				row.Mean = average(row.Runs)
			}
		}
		if all == nil {
			all = r
			continue
		}
		all.Command += "\n" + r.Command
		all.Cells = append(all.Cells, r.Cells...)
		maps.Copy(all.Versions, r.Versions)
	}
	return all.finish(o)
}

// finish writes and prints everything.
func (r *report) finish(o *options) error {
	if err := r.print(os.Stdout); err != nil {
		return err
	}
	if o.markdown != "" {
		if err := r.markdown(o.markdown); err != nil {
			return err
		}
	}
	if o.readme != "" {
		return r.readme(o.readme)
	}
	return nil
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
	last := valid[len(valid)-1]
	m := &figures{Void: void, Told: last.Told, work: work{Shares: last.Shares}}
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
