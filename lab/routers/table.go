package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// print writes the tables for a terminal.
func (r *report) print(out io.Writer) error {
	fmt.Fprintf(out, "\n%s\n%s\n%s\n", r.Command, r.Machine, r.setting())
	for _, name := range sorted(r.Versions) {
		fmt.Fprintf(out, "  %s: %s\n", name, r.Versions[name])
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(out, "  skipped %s\n", s)
	}
	for _, c := range r.Cells {
		fmt.Fprintf(out, "\n%s\n", c.title())
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, strings.Join(append(columns(), "router cores", "sims", "players", "busy %", "step late ms", "sent late ms", "void"), "\t"))
		for _, row := range c.Results {
			if row.Mean == nil {
				fmt.Fprintf(w, "%s\t%s\n", row.Router, row.Error)
				continue
			}
			f := row.Mean
			fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%.2f\t%.0f\t%.2f\t%.0f\t%s\n", strings.Join(row.cells(), "\t"), f.RouterCores, f.SimCores, f.PlayerCores, 100*f.MachineBusy, 1000*f.StepLate, 1000*f.PlayerLate, strings.Join(f.Void, ", "))
		}
		if err := w.Flush(); err != nil {
			return err
		}
		for _, line := range c.remarks() {
			fmt.Fprintln(out, "  "+line)
		}
	}
	_, err := fmt.Fprintf(out, "\n%s\nresults and logs are in %s\n", r.sentence(), r.out)
	return err
}

// setting describes what all cells have in common.
func (r *report) setting() string {
	s := fmt.Sprintf("%d replicas, %g s of requests a run", r.Replicas, r.Seconds)
	if r.Rounds > 1 {
		s += fmt.Sprintf(", %d rounds", r.Rounds)
	}
	if r.API != "" && r.API != "chat" {
		s += ", " + r.API
	}
	if r.Speed > 0 && r.Speed != 1 {
		s += fmt.Sprintf(", engines %g times as fast as kvpilot's guess", r.Speed)
	}
	if len(r.Speeds) > 0 {
		s += fmt.Sprintf(", by replica %v on top", r.Speeds)
	}
	return s
}

// common is the setting of all cells; empty when each has its own.
func (r *report) common() string {
	if len(r.Cells) > 0 && r.Cells[0].Setting != "" {
		return ""
	}
	return "; " + r.setting()
}

func (c *cell) title() string {
	s := fmt.Sprintf("%s, %d requests at %.2f/s", c.Trace, c.Requests, c.Rate)
	if c.Load > 0 {
		s = fmt.Sprintf("%s, load %.2f: %d requests at %.2f/s", c.Trace, c.Load, c.Requests, c.Rate)
	}
	if c.Agents > 0 {
		s += fmt.Sprintf(" of %d agents", c.Agents)
	}
	return s
}

func columns() []string {
	return []string{"router", "TTFT mean s", "p50", "p99", "TPOT p50 ms", "whole mean s", "p99", "good %", "good/s", "cached %", "imbalance", "failed", "unfinished"}
}

// cells are the row's figures, in the order of columns.
func (row *rows) cells() []string {
	f := row.Mean
	list := []string{row.Router}
	add := func(format string, v ...any) { list = append(list, fmt.Sprintf(format, v...)) }
	add("%.2f", f.TTFT)
	add("%.2f", f.TTFTP50)
	add("%.1f", f.TTFTP99)
	add("%.0f", 1000*f.TPOTP50)
	add("%.2f", f.Whole)
	add("%.1f", f.WholeP99)
	add("%.0f", 100*f.Good)
	add("%.1f", f.Goodput)
	add("%.1f", 100*f.Cached)
	add("%.2f", f.Imbalance)
	add("%d", f.Errors)
	add("%d", f.Unfinished)
	return list
}

// remarks are the lines below a cell's table: replay, and kvpilot's report about itself.
func (c *cell) remarks() []string {
	var about, list []string
	if c.Setting != "" {
		about = append(about, "played with "+c.Setting)
	}
	if p := c.Replay; p != nil {
		about = append(about, fmt.Sprintf("kvpilot replay: TTFT mean %.2f s, p99 %.1f, cached %.1f %%, imbalance %.2f; pooled oracle %.2f s", p.TTFT, p.TTFTP99, 100*p.Cached, p.Imbalance, p.Oracle))
		for _, row := range c.Results {
			if f := row.Mean; f != nil && row.Router == "kvpilot" {
				about = append(about, p.compare(f))
			}
		}
	}
	if len(about) > 0 {
		list = append(list, strings.Join(about, "; "))
	}
	for _, row := range c.Results {
		if row.Mean != nil && row.Mean.Told != nil {
			list = append(list, row.Router+": "+row.Mean.Told.String())
		}
	}
	return list
}

// Bounds of the agreement between real processes and replay.
const (
	sameTTFT   = 0.15
	sameCached = 0.02
)

// compare describes how real processes differ from replay.
func (p *played) compare(f *figures) string {
	ttft, cached := f.TTFT/p.TTFT-1, f.Cached-p.Cached
	verdict := "within"
	if math.Abs(ttft) > sameTTFT || math.Abs(cached) > sameCached {
		verdict = "NOT within"
	}
	return fmt.Sprintf("real against replay: TTFT %+.0f %%, cached %+.1f points: %s bounds", 100*ttft, 100*cached, verdict)
}

// String has the predictions and the learned rates.
func (t *forecast) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "predicted / actual TTFT p10 %.2f, p50 %.2f, p90 %.2f of %d; held %.2f s on average; learned tokens/s", t.RatioP10, t.RatioP50, t.RatioP90, t.Predictions, t.HeldMean)
	for n, rates := range t.Rates {
		if n > 0 {
			b.WriteString(" |")
		}
		for _, v := range rates {
			fmt.Fprintf(&b, " %.1fk", v/1000)
		}
	}
	return b.String()
}

// best is the router other than kvpilot with the least of a figure; nil when there is none to compare.
func (c *cell) best(of func(*figures) float64) *rows {
	var best *rows
	for _, row := range c.Results {
		if row.Product || row.Mean == nil || len(row.Mean.Void) > 0 {
			continue
		}
		if best == nil || of(row.Mean) < of(best.Mean) {
			best = row
		}
	}
	return best
}

// standard is kvpilot with one process and its default policy; nil when it was not played or is void.
func (c *cell) standard() *rows {
	for _, row := range c.Results {
		if row.Router == "kvpilot" && row.Mean != nil && len(row.Mean.Void) == 0 {
			return row
		}
	}
	return nil
}

// sentence is the result in one sentence.
func (r *report) sentence() string {
	first, ties, cells := 0, 0, 0
	least, most, worst := math.Inf(1), 0.0, 0.0
	for _, c := range r.Cells {
		own, other, whole := c.standard(), c.best(func(f *figures) float64 { return f.TTFT }), c.best(func(f *figures) float64 { return f.Whole })
		if own == nil || other == nil {
			continue
		}
		cells++
		ratio := own.Mean.TTFT / other.Mean.TTFT
		switch {
		case math.Abs(ratio-1) < tie:
			ties++
		case ratio < 1:
			first++
		}
		least, most = min(least, ratio), max(most, ratio)
		worst = max(worst, own.Mean.Whole/whole.Mean.Whole)
	}
	if cells == 0 {
		return "Nothing to compare: no cell has figures of kvpilot and of another router that are not void."
	}
	tied := ""
	if ties > 0 {
		tied = fmt.Sprintf(" and the same within 1 %% in %d", ties)
	}
	return fmt.Sprintf("kvpilot has the least mean time to the first token in %d of %d cells%s, %.2f to %.2f times the best other router's; on these loads its whole answers take at most %.2f times as long as the best other's.", first, cells, tied, least, most, worst)
}

// tie is the difference between ratios below which no router is ahead: one round does not measure it.
const tie = 0.01

// summary is a table of mean times to the first token, a row for each cell, a column for each router that was played as it is.
func (r *report) summary() string {
	var routers []string
	for _, c := range r.Cells {
		for _, row := range c.Results {
			if !slices.Contains(routers, row.Router) && (!row.Product || row.Router == "kvpilot") {
				routers = append(routers, row.Router)
			}
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| load | %s |\n|---|%s\n", strings.ReplaceAll(strings.Join(routers, " | "), ":", " "), strings.Repeat("---|", len(routers)))
	for _, c := range r.Cells {
		fmt.Fprintf(&b, "| %s, %.1f |", c.name(), c.Load)
		for _, name := range routers {
			text := " – |"
			for _, row := range c.Results {
				if row.Router == name && row.Mean != nil {
					text = fmt.Sprintf(" %.2f |", row.Mean.TTFT)
				}
			}
			b.WriteString(text)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// name is the trace's in one word: of a public trace without its publisher.
func (c *cell) name() string {
	return strings.TrimSuffix(strings.TrimPrefix(c.Trace, "mooncake_"), "_trace")
}
