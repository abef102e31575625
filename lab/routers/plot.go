package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Sizes of a plot in its own units.
const (
	plotWidth = 860
	plotLeft  = 210
	plotRight = 60
	plotRow   = 20
	plotHead  = 46
	plotGap   = 40
)

// plot draws a figure of all routers, cell by cell: a point for the mean, a line from the least to the most of
// the rounds. The axis is logarithmic; void figures are hollow.
func (r *report) plot(title string, of func(*figures) float64) string {
	var b strings.Builder
	y := 34.0
	for _, c := range r.Cells {
		y = c.plot(&b, y, of)
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %d %.0f" font-family="sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="#ffffff"/>
<text x="12" y="22" font-size="15" font-weight="bold" fill="#222222">%s, seconds</text>
%s</svg>
`, plotWidth, y, plotWidth, y, html.EscapeString(title), b.String())
}

// plot draws one cell below y and returns where the next one begins.
func (c *cell) plot(b *strings.Builder, y float64, of func(*figures) float64) float64 {
	least, most := math.Inf(1), 0.0
	drawn := 0
	for _, row := range c.Results {
		if row.Mean == nil {
			continue
		}
		drawn++
		for _, f := range row.Runs {
			if v := of(f); v > 0 {
				least, most = min(least, v), max(most, v)
			}
		}
	}
	if most == 0 {
		return y
	}
	low, high := math.Floor(math.Log10(least)*3)/3, math.Ceil(math.Log10(most)*3)/3
	if high <= low {
		high = low + 1./3
	}
	at := func(v float64) float64 {
		share := (math.Log10(max(v, 1e-9)) - low) / (high - low)
		return plotLeft + min(max(share, 0), 1)*(plotWidth-plotLeft-plotRight)
	}
	fmt.Fprintf(b, `<text x="12" y="%.0f" font-weight="bold" fill="#222222">%s</text>`+"\n", y+20, html.EscapeString(c.title()))
	top := y + plotHead - 14
	bottom := top + float64(drawn)*plotRow + 4
	for e := math.Floor(low); e <= math.Ceil(high); e++ {
		for _, m := range []float64{1, 2, 5} {
			v := m * math.Pow(10, e)
			if l := math.Log10(v); l < low-1e-9 || l > high+1e-9 {
				continue
			}
			fmt.Fprintf(b, `<line x1="%.1f" y1="%.0f" x2="%.1f" y2="%.0f" stroke="#dddddd"/>`, at(v), top, at(v), bottom)
			fmt.Fprintf(b, `<text x="%.1f" y="%.0f" text-anchor="middle" fill="#666666" font-size="10">%g</text>`+"\n", at(v), bottom+13, v)
		}
	}
	line := top + plotRow*0.75
	for _, row := range c.Results {
		if row.Mean != nil {
			row.plot(b, line, at, of)
			line += plotRow
		}
	}
	return bottom + plotGap
}

// plot draws one router's line.
func (row *rows) plot(b *strings.Builder, y float64, at func(float64) float64, of func(*figures) float64) {
	colour, weight := "#7a8894", "normal"
	if row.Product {
		colour, weight = "#0b6bcb", "bold"
	}
	fill := colour
	if len(row.Mean.Void) > 0 {
		fill = "#ffffff"
	}
	least, most := math.Inf(1), 0.0
	for _, f := range row.Runs {
		least, most = min(least, of(f)), max(most, of(f))
	}
	v := of(row.Mean)
	fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end" fill="#222222" font-weight="%s">%s</text>`, plotLeft-12, y+4, weight, html.EscapeString(row.Router))
	fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="2"/>`, at(least), y, at(most), y, colour)
	fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="5" fill="%s" stroke="%s" stroke-width="2"/>`, at(v), y, fill, colour)
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" fill="#444444" font-size="11">%.2f</text>`+"\n", at(most)+9, y+4, v)
}
