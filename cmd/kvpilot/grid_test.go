package main

import (
	"slices"
	"testing"
)

func TestTablesFitTheirTerminal(t *testing.T) {
	g := func() *grid {
		g := &grid{columns: []column{{head: "NAME"}, {head: "N", right: true}, {head: "LESS", spare: 1}, {head: "LEAST", spare: 2}}}
		g.add("a-long-name-0", "7", "x", "y")
		g.add("推論", "1234", "xx", "\x1b[2J")
		return g
	}
	for name, c := range map[string]struct {
		wide int
		want []string
	}{
		"a file":      {0, []string{"NAME              N  LESS  LEAST", "a-long-name-0     7  x     y", "推論           1234  xx    ?[2J"}},
		"just enough": {32, []string{"NAME              N  LESS  LEAST", "a-long-name-0     7  x     y", "推論           1234  xx    ?[2J"}},
		"one less":    {31, []string{"NAME              N  LESS", "a-long-name-0     7  x", "推論           1234  xx"}},
		"two less":    {20, []string{"NAME              N", "a-long-name-0     7", "推論           1234"}},
		"a cut name":  {16, []string{"NAME           N", "a-long-na…     7", "推論        1234"}},
		"hopeless":    {3, []string{"NAME         N", "a-long-…     7", "推論      1234"}},
	} {
		if got := g().lines(c.wide); !slices.Equal(got, c.want) {
			t.Errorf("%s: got\n%q\nwant\n%q", name, got, c.want)
		}
	}
}
