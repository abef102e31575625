package replay

import (
	"cmp"
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// The measures of a plot of curves, in its own units.
const (
	panelWidth, panelHeight = 380, 260
	panelLeft, panelTop     = 52, 34
	panelGap                = 70
)

// Curves draws the mean time to the first token and that of the whole answer over the load, one line per
// policy and one for the oracle, as an SVG picture. The reports are of one trace and fleet. A run that was
// abandoned has no point.
func Curves(w io.Writer, reports []*Report) error {
	if len(reports) == 0 {
		return fmt.Errorf("no reports to draw")
	}
	reports = slices.SortedFunc(slices.Values(reports), func(a, b *Report) int { return cmp.Compare(a.Load, b.Load) })
	r := reports[0]
	names := append(slices.Clone(r.order), "")
	height := panelTop + panelHeight + 46 + 18*((len(names)+3)/4)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui,sans-serif" font-size="11">`+"\n", panelLeft+2*panelWidth+panelGap+16, height)
	b.WriteString(`<rect width="100%" height="100%" fill="#fff"/>` + "\n")
	fmt.Fprintf(&b, `<text x="%d" y="14" font-size="13" font-weight="600">%s, %d replicas (%s)</text>`+"\n", panelLeft, html.EscapeString(r.Trace), r.Replicas, html.EscapeString(r.Profile))
	panels := []struct {
		title string
		value func(*PolicyReport) float64
	}{
		{"mean time to the first token, s", func(p *PolicyReport) float64 { return p.Mean }},
		{"mean time to the whole answer, s", func(p *PolicyReport) float64 { return p.AnswerMean }},
	}
	for i, p := range panels {
		panel(&b, reports, names, panelLeft+i*(panelWidth+panelGap), p.title, p.value)
	}
	for i, name := range names {
		color, width := curveStyle(name, i)
		legend(&b, i, color, width, label(name))
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// legend names the i-th line of a picture.
func legend(b *strings.Builder, i int, color, width, name string) {
	x, y := panelLeft+(i%4)*200, panelTop+panelHeight+50+18*(i/4)
	fmt.Fprintf(b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="%s"/><text x="%d" y="%d">%s</text>`+"\n", x, y-4, x+20, y-4, color, width, x+26, y, name)
}

func label(name decision.Policy) string {
	if name == "" {
		return "oracle: pooled cache"
	}
	return html.EscapeString(string(name))
}

// curveStyle gives the i-th policy its colour; the default one and the oracle stand out.
func curveStyle(name decision.Policy, i int) (color, width string) {
	switch name {
	case decision.PredictedTTFT:
		return "#1d6f42", "2.5"
	case "":
		return "#c9a227", "2"
	default:
		colors := []string{"#4c72b0", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#64b5cd", "#8c8c8c", "#dd8452", "#55a868", "#30588c"}
		return colors[i%len(colors)], "1.2"
	}
}

// panel draws the curves of one figure. The axis of seconds is logarithmic, up to twenty times the least.
func panel(b *strings.Builder, reports []*Report, names []decision.Policy, left int, title string, value func(*PolicyReport) float64) {
	least, most := math.Inf(1), 0.0
	each := func(name decision.Policy, draw func(load, v float64)) {
		for _, r := range reports {
			p := r.Oracle
			if name != "" {
				p = r.Policies[name]
			}
			if v := value(&p); !p.Abandoned && v > 0 {
				draw(r.Load, v)
			}
		}
	}
	for _, name := range names {
		each(name, func(_, v float64) { least, most = min(least, v), max(most, v) })
	}
	if most == 0 {
		return
	}
	least, most = least/1.2, min(most, least*20)*1.1
	low, high := reports[0].Load, reports[len(reports)-1].Load
	if high == low {
		low, high = low-0.05, high+0.05
	}
	x := func(load float64) float64 { return float64(left) + panelWidth*(load-low)/(high-low) }
	y := func(v float64) float64 { return panelTop + panelHeight*(1-math.Log(v/least)/math.Log(most/least)) }
	fmt.Fprintf(b, `<text x="%d" y="%d">%s</text><rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#bbb"/>`+"\n", left, panelTop-6, title, left, panelTop, panelWidth, panelHeight)
	for _, tick := range ticks(least, most) {
		fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#eee"/><text x="%d" y="%.1f" text-anchor="end">%g</text>`+"\n", left, left+panelWidth, y(tick), y(tick), left-6, y(tick)+4, tick)
	}
	for _, r := range reports {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%.2g</text>`+"\n", x(r.Load), panelTop+panelHeight+15, r.Load)
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">load: arrivals over what the pooled cache completes</text>`+"\n", left+panelWidth/2, panelTop+panelHeight+30)
	for i, name := range names {
		color, width := curveStyle(name, i)
		var points []string
		each(name, func(load, v float64) {
			if v <= most {
				points = append(points, fmt.Sprintf("%.1f,%.1f", x(load), y(v)))
			}
		})
		if len(points) > 0 {
			fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="%s"/>`+"\n", strings.Join(points, " "), color, width)
		}
	}
}

// ticks are 1, 2 and 5 times the powers of ten between low and high.
func ticks(low, high float64) []float64 {
	var list []float64
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow(10, e); v >= low && v <= high {
				list = append(list, v)
			}
		}
	}
	return list
}
