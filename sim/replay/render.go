package replay

import (
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Table writes the report for people.
func (r *Report) Table(w io.Writer) error {
	routers := ""
	if r.Routers > 1 {
		routers = fmt.Sprintf(", %d routers (%s, round trip %s)", r.Routers, r.Fleet, seconds(r.RTT))
	}
	if r.Frontends != "" {
		routers += fmt.Sprintf(", frontends %s", r.Frontends)
	}
	load := fmt.Sprintf("load %.2f of the pooled cache's saturation (%.2f requests/s)", r.Load, r.RPS)
	if r.AtOnce > 0 {
		load = fmt.Sprintf("%d programs at once (%.2f of the memory)", r.AtOnce, r.Memory)
	}
	fmt.Fprintf(w, "%s: %d requests, %d replicas (%s)%s, %s, %d seeds; good: TTFT <= %s and TPOT <= %s\n",
		r.Trace, r.Calls, r.Replicas, r.Profile, routers, load, r.Seeds, seconds(r.Goal.TTFT), seconds(r.Goal.TPOT))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "policy\tTTFT mean\tp50\tp90\tp99\tanswer mean\tp50\tp99\tTPOT p50 ms\tp99\tgood\thit rate\timbalance\tpreempted\tpredicted/actual p10\tp50\tp90\tvs oracle\tsaturation\t")
	row := func(name string, p PolicyReport) {
		sat, predicted := "-", "-\t-\t-"
		if p.SaturationRPS > 0 {
			sat = fmt.Sprintf("%.2f/s = %.2f", p.SaturationRPS, p.SaturationVsOracle)
		}
		if p.Abandoned {
			fmt.Fprintf(t, "%s\t>%.1f%s\t>%.0f\t%s\t\n", name, p.Mean, strings.Repeat("\t-", 15), p.VsOracle, sat)
			return
		}
		if q := p.Predicted; q != (Quantiles{}) {
			predicted = fmt.Sprintf("%.2f\t%.2f\t%.2f", q.P10, q.P50, q.P90)
		}
		fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%.2f\t%.1f\t%.2f\t%.2f\t%.1f\t%.1f\t%.0f\t%.3f\t%.3f\t%.2f\t%.3f\t%s\t%.2f\t%s\t\n", name, p.Mean, p.P50, p.P90, p.P99,
			p.AnswerMean, p.AnswerP50, p.AnswerP99, 1e3*p.TPOTP50, 1e3*p.TPOTP99, p.Goodput, p.HitRate, p.Imbalance, p.Preemptions, predicted, p.VsOracle, sat)
	}
	for _, name := range r.order {
		row(string(name), r.Policies[name])
	}
	row("oracle: pooled cache", r.Oracle)
	if err := t.Flush(); err != nil {
		return err
	}
	if err := r.programs(w); err != nil {
		return err
	}
	if err := r.chats(w); err != nil {
		return err
	}
	if err := r.scaled(w); err != nil {
		return err
	}
	for _, name := range append(slices.Clone(r.order), "") {
		p := r.Policies[name]
		if name == "" {
			p = r.Oracle
		}
		if len(p.Work) == 0 || p.Abandoned {
			continue
		}
		fmt.Fprintf(w, "%s: prompt tokens computed", label(name))
		for _, k := range p.Work {
			fmt.Fprintf(w, ", at speed %g %.1f %%", k.Speed, 100*k.Share)
		}
		fmt.Fprintln(w)
	}
	return nil
}

// programs writes the figures of a closed loop's sessions.
func (r *Report) programs(w io.Writer) error {
	if r.Oracle.Programs == nil {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "programs\tper hour\tmakespan\tcompletion mean\tp50\tp99\tfirst call's TTFT mean\tmax\tbranches' TTFT p50\tp90\t")
	for _, name := range append(slices.Clone(r.order), "") {
		p := r.Policies[name]
		if name == "" {
			p = r.Oracle
		}
		if q := p.Programs; q != nil && !p.Abandoned {
			branches := "-\t-"
			if b := q.Branches; b != nil {
				branches = fmt.Sprintf("%.2f\t%.2f", b.P50, b.P90)
			}
			fmt.Fprintf(t, "%s\t%.1f\t%.0f\t%.0f\t%.0f\t%.0f\t%.1f\t%.0f\t%s\t\n", label(name), q.PerHour, q.Makespan, q.Mean, q.P50, q.P99, q.Waited, q.Wait, branches)
		}
	}
	return t.Flush()
}

// scaled writes the outcomes of autoscalers.
func (r *Report) scaled(w io.Writer) error {
	if !slices.ContainsFunc(r.order, func(name decision.Policy) bool { return r.Policies[name].Scaled != nil }) {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "autoscaler\tgood\tTTFT p50\tp99\tlost\treplicas mean\tmost\tstarts\tGPU-hours\twakes\tfirst answer s\t")
	for _, name := range r.order {
		if p := r.Policies[name]; p.Scaled != nil {
			s := p.Scaled
			fmt.Fprintf(t, "%s\t%.4f\t%.2f\t%.1f\t%.4g\t%.2f\t%.0f\t%.1f\t%.2f\t%.4g\t%.1f\t\n",
				name, p.Goodput, p.P50, p.P99, s.Lost, s.Mean, s.Most, s.Starts, s.GPUSeconds/3600, s.Wakes, s.Woken)
		}
	}
	return t.Flush()
}

// seconds writes a time in its shortest form.
func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Microsecond).String()
}

// Plot writes the reports as a page of bar charts that needs nothing else.
func Plot(w io.Writer, reports []*Report) error {
	var b strings.Builder
	b.WriteString(`<!doctype html><html lang="en"><meta charset="utf-8"><title>kvpilot replay</title>
<style>body{font:14px/1.4 system-ui,sans-serif;margin:2rem;max-width:60rem}svg{width:100%;height:auto}
.bar{fill:#7a8ca8}.best{fill:#1d6f42}.oracle{fill:#c9b458}text{font:12px system-ui,sans-serif;fill:currentColor}
@media(prefers-color-scheme:dark){body{background:#16181d;color:#e4e6eb}}</style><h1>kvpilot replay</h1>`)
	for _, r := range reports {
		fmt.Fprintf(&b, "<h2>%s, %d replicas, load %.2f</h2><p>%d requests at %.2f/s, profile %s, %d seeds. Mean time to the first token in seconds; p99 and cache hit rate next to it. The axis is logarithmic.</p>",
			html.EscapeString(r.Trace), r.Replicas, r.Load, r.Calls, r.RPS, html.EscapeString(r.Profile), r.Seeds)
		r.bars(&b)
	}
	b.WriteString("</html>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) bars(b *strings.Builder) {
	const left, width, high = 150, 480, 24
	names := append([]decision.Policy{}, r.order...)
	names = append(names, "")
	most, least := r.Oracle.Mean, r.Oracle.Mean
	for _, p := range r.Policies {
		most, least = max(most, p.Mean), min(least, p.Mean)
	}
	fmt.Fprintf(b, `<svg viewBox="0 0 900 %d" role="img">`, high*len(names)+8)
	for i, name := range names {
		p, class, label := r.Policies[name], "bar", string(name)
		switch name {
		case decision.PredictedTTFT:
			class = "best"
		case "":
			p, class, label = r.Oracle, "oracle", "oracle"
		default: // a policy like the others
		}
		length := width * scaled(p.Mean, least/2, most)
		y := i * high
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text><rect class="%s" x="%d" y="%d" width="%.1f" height="%d"/>`,
			left-8, y+17, label, class, left, y+3, length, high-6)
		if p.Abandoned {
			fmt.Fprintf(b, `<text x="%.1f" y="%d">more than %.1f s, given up</text>`, left+length+6, y+17, p.Mean)
			continue
		}
		fmt.Fprintf(b, `<text x="%.1f" y="%d">%.2f s, p99 %.1f s, hits %.0f %%</text>`, left+length+6, y+17, p.Mean, p.P99, 100*p.HitRate)
	}
	b.WriteString("</svg>")
}

// scaled places v between low and high on a logarithmic axis, 0 to 1.
func scaled(v, low, high float64) float64 {
	if v <= 0 || low <= 0 || high <= low {
		return 0
	}
	return max(0.01, math.Log(v/low)/math.Log(high/low))
}
