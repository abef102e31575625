package replay

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
	"text/tabwriter"
)

// kindName is the name of an arrangement or a kind of them in reports.
func kindName(roles string) string {
	switch roles {
	case "none":
		return "one pool"
	case kindFixed:
		return "best fixed division"
	}
	return roles
}

// Table writes the plan for people.
func (p *Plan) Table(w io.Writer) error {
	fmt.Fprintf(w, "%s: %d requests, %d replicas (%s, %d GPUs each), %s; goal: %.4g %% of the answers with TTFT <= %s and TPOT <= %s\n",
		p.Trace, p.Calls, p.Replicas, p.Profile, p.GPUs, plural(p.Seeds, "seed"), 100*p.Share, seconds(p.Goal.TTFT), seconds(p.Goal.TPOT))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "arrangement\tkeeps the goal up to\tof the best\tTTFT p50 s\tp99\tTPOT p50 ms\tp99\tsplit\tfails at\tgood there\tmost misses\t")
	best := p.best()
	for i := range p.Arrangements {
		a := &p.Arrangements[i]
		fmt.Fprintf(t, "%s\t", kindName(a.Name))
		if at := a.at(a.Keeps); at != nil {
			fmt.Fprintf(t, "%.2f/s\t%.2f\t%.2f\t%.2f\t%.1f\t%.1f\t%.2f\t", a.Keeps, a.Keeps/p.Arrangements[best].Keeps, at.TTFTP50, at.TTFTP99, 1e3*at.TPOTP50, 1e3*at.TPOTP99, at.Split)
		} else {
			fmt.Fprint(t, "no load\t-\t-\t-\t-\t-\t-\t")
		}
		if at := a.at(a.Breaks); at != nil {
			fmt.Fprintf(t, "%.2f/s\t%s\t%s\t\n", a.Breaks, at.share(), strings.ToUpper(a.Cause))
		} else {
			fmt.Fprint(t, "-\t-\t-\t\n")
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if err := p.curve(w); err != nil {
		return err
	}
	if err := p.needs(w); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%d runs. Not looked at:\n", p.Runs)
	for _, text := range p.Unseen {
		fmt.Fprintf(w, "- %s\n", text)
	}
	return nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// share writes the share of good answers.
func (p *Point) share() string {
	if p.Abandoned {
		return "<0.5"
	}
	return fmt.Sprintf("%.3f", p.Good)
}

// curve writes the share of good answers by load.
func (p *Plan) curve(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\ngood answers at\t")
	for i := range p.Arrangements {
		fmt.Fprintf(t, "%s\t", kindName(p.Arrangements[i].Name))
	}
	fmt.Fprintln(t)
	for _, rps := range p.loads() {
		fmt.Fprintf(t, "%.2f/s\t", rps)
		for i := range p.Arrangements {
			text := ""
			if at := p.Arrangements[i].at(rps); at != nil {
				text = at.share()
			}
			fmt.Fprintf(t, "%s\t", text)
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// needs writes how many replicas the load takes.
func (p *Plan) needs(w io.Writer) error {
	if p.Rate == 0 {
		_, err := fmt.Fprintln(w, "\nNo load was given with --rate: replicas are not counted.")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\nfor %.4g/s\treplicas\tGPUs\tdivision\tgood\t\n", p.Rate)
	for _, n := range p.Needs {
		if n.Replicas == 0 {
			fmt.Fprintf(t, "%s\tmore than were tried\t-\t-\t-\t\n", kindName(n.Kind))
			continue
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%.3f\t\n", kindName(n.Kind), n.Replicas, n.Replicas*p.GPUs, n.Roles, n.Good)
	}
	return t.Flush()
}

// Draw draws the share of good answers, and the rate of them, over the load as an SVG picture with one line per arrangement.
func (p *Plan) Draw(w io.Writer) error {
	rates := p.loads()
	if len(rates) == 0 {
		return fmt.Errorf("no load was played to its end: there is nothing to draw")
	}
	var b strings.Builder
	height := panelTop + panelHeight + 46 + 18*((len(p.Arrangements)+3)/4)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui,sans-serif" font-size="11">`+"\n", panelLeft+2*panelWidth+panelGap+16, height)
	b.WriteString(`<rect width="100%" height="100%" fill="#fff"/>` + "\n")
	fmt.Fprintf(&b, `<text x="%d" y="14" font-size="13" font-weight="600">%s, %d replicas (%s), TTFT up to %s and TPOT up to %s</text>`+"\n",
		panelLeft, html.EscapeString(p.Trace), p.Replicas, html.EscapeString(p.Profile), seconds(p.Goal.TTFT), seconds(p.Goal.TPOT))
	p.plot(&b, panelLeft, "share of good answers", rates, 1, func(at *Point) float64 { return at.Good })
	most := 0.0
	for i := range p.Arrangements {
		for _, at := range p.Arrangements[i].Points {
			most = max(most, at.GoodRPS)
		}
	}
	p.plot(&b, panelLeft+panelWidth+panelGap, "good answers per second", rates, 1.05*most, func(at *Point) float64 { return at.GoodRPS })
	for i := range p.Arrangements {
		color, width := arrangementStyle(i)
		legend(&b, i, color, width, html.EscapeString(kindName(p.Arrangements[i].Name)))
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// arrangementStyle has one pool and both stand out.
func arrangementStyle(i int) (color, width string) {
	switch i {
	case 0:
		return "#c9a227", "2.5"
	case 1:
		return "#1d6f42", "2.5"
	}
	return curveStyle("fixed", i)
}

// plot draws one panel with linear axes from the lowest load and from 0.
func (p *Plan) plot(b *strings.Builder, left int, title string, rates []float64, most float64, value func(*Point) float64) {
	low, high := rates[0], rates[len(rates)-1]
	if low == high {
		low, high = low*0.9, high*1.1
	}
	if most == 0 {
		most = 1
	}
	x := func(rps float64) float64 { return float64(left) + panelWidth*(rps-low)/(high-low) }
	y := func(v float64) float64 { return panelTop + panelHeight*(1-v/most) }
	fmt.Fprintf(b, `<text x="%d" y="%d">%s</text><rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#bbb"/>`+"\n", left, panelTop-6, title, left, panelTop, panelWidth, panelHeight)
	for _, v := range even(0, most) {
		fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#eee"/><text x="%d" y="%.1f" text-anchor="end">%.4g</text>`+"\n", left, left+panelWidth, y(v), y(v), left-6, y(v)+4, v)
	}
	for _, v := range even(low, high) {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%.4g</text>`+"\n", x(v), panelTop+panelHeight+15, v)
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">requests per second</text>`+"\n", left+panelWidth/2, panelTop+panelHeight+30)
	for i := range p.Arrangements {
		var points []string
		for j := range p.Arrangements[i].Points {
			if at := &p.Arrangements[i].Points[j]; !at.Abandoned {
				points = append(points, fmt.Sprintf("%.1f,%.1f", x(at.RPS), y(value(at))))
			}
		}
		if len(points) > 0 {
			color, width := arrangementStyle(i)
			fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="%s"/>`+"\n", strings.Join(points, " "), color, width)
		}
	}
}

// even are about five round numbers at even distances from low to high.
func even(low, high float64) []float64 {
	rough := (high - low) / 5
	unit := math.Pow(10, math.Floor(math.Log10(rough)))
	switch m := rough / unit; {
	case m > 5:
		unit *= 10
	case m > 2:
		unit *= 5
	case m > 1:
		unit *= 2
	}
	var list []float64
	for k := math.Ceil(low/unit - 1e-9); k*unit <= high*(1+1e-9); k++ {
		list = append(list, k*unit)
	}
	return list
}
