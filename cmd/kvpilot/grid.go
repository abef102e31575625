package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// column is one column of a grid.
type column struct {
	head string
	// right aligns numbers, so that their digits stand below each other.
	right bool
	// spare columns are left out when a terminal is too narrow, the highest first; zero stays.
	spare int
}

// grid is a table that knows how wide it may be.
type grid struct {
	columns []column
	rows    [][]string
}

const (
	gap      = 2 // cells between columns
	narrowed = 8 // the least width that a long name is cut to
)

func (g *grid) add(cells ...string) { g.rows = append(g.rows, cells) }

// lines is the table in at most wide cells; zero asks for all of it, as a file gets it.
func (g *grid) lines(wide int) []string {
	widths := make([]int, len(g.columns))
	for i, c := range g.columns {
		widths[i] = cells(c.head)
	}
	for _, row := range g.rows {
		for i := range row {
			row[i] = plain(row[i])
			widths[i] = max(widths[i], cells(row[i]))
		}
	}
	shown := g.fit(widths, wide)
	list := []string{g.line(shown, widths, func(i int) string { return g.columns[i].head })}
	for _, row := range g.rows {
		list = append(list, g.line(shown, widths, func(i int) string { return row[i] }))
	}
	return list
}

// fit chooses the columns that wide cells have room for, and narrows the widest text when these
// are still too many.
func (g *grid) fit(widths []int, wide int) []int {
	var shown []int
	for i := range g.columns {
		shown = append(shown, i)
	}
	total := func() int {
		sum := -gap
		for _, i := range shown {
			sum += widths[i] + gap
		}
		return sum
	}
	for wide > 0 && total() > wide {
		least := slices.MaxFunc(shown, func(a, b int) int { return g.columns[a].spare - g.columns[b].spare })
		if g.columns[least].spare == 0 {
			break
		}
		shown = slices.DeleteFunc(shown, func(i int) bool { return i == least })
	}
	for wide > 0 && total() > wide {
		widest := slices.MaxFunc(shown, func(a, b int) int { return widths[a] - widths[b] })
		if widths[widest] <= narrowed {
			break
		}
		widths[widest] = max(narrowed, widths[widest]-(total()-wide))
	}
	return shown
}

func (g *grid) line(shown, widths []int, text func(int) string) string {
	var b strings.Builder
	for n, i := range shown {
		if n > 0 {
			b.WriteString(strings.Repeat(" ", gap))
		}
		t := shorten(text(i), widths[i])
		space := strings.Repeat(" ", widths[i]-cells(t))
		if g.columns[i].right {
			t, space = space, t
		}
		b.WriteString(t + space)
	}
	return strings.TrimRight(b.String(), " ")
}

// print writes the table to a terminal or to a file.
func (g *grid) print(out io.Writer) error {
	wide, _ := terminal(out)
	_, err := fmt.Fprintln(out, strings.Join(g.lines(wide), "\n"))
	return err
}

// plain leaves out characters that would steer a terminal: names come from engines and clients.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, s)
}

// cells is how many columns of a terminal a text takes.
func cells(s string) int {
	n := 0
	for _, r := range s {
		n += runeCells(r)
	}
	return n
}

func runeCells(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	if k := width.LookupRune(r).Kind(); k == width.EastAsianWide || k == width.EastAsianFullwidth {
		return 2
	}
	return 1
}

// shorten cuts a text to so many columns.
func shorten(s string, most int) string {
	if cells(s) <= most {
		return s
	}
	n := 0
	for i, r := range s {
		if n += runeCells(r); n > most-1 {
			return s[:i] + "…"
		}
	}
	return s
}
