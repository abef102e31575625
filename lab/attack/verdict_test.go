package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func answers(n int, took time.Duration) []result {
	all := make([]result, n)
	for i := range all {
		all[i] = result{tenant: "a", took: took}
	}
	return all
}

func TestJudge(t *testing.T) {
	broken := append(answers(99, time.Second), result{tenant: "b", fault: "503"})
	for name, c := range map[string]struct {
		v    verdict
		fast bool
		want string // part of the one fault; empty: none
	}{
		"nothing changed":       {v: verdict{calm: answers(100, time.Second), under: answers(100, 2*time.Second)}},
		"a request failed":      {v: verdict{calm: answers(100, time.Second), under: broken}, want: "1 of 100 honest requests failed (b 1): tenant b: 503"},
		"slower":                {v: verdict{calm: answers(100, time.Second), under: answers(100, 2001*time.Millisecond)}, want: "p99 2.001s, without the attack at this router at most 1s"},
		"slower elsewhere, too": {v: verdict{calm: answers(100, time.Second), elsewhere: answers(100, 2*time.Second), under: answers(100, 4*time.Second)}},
		"slower, not judged":    {v: verdict{calm: answers(100, time.Second), under: answers(100, 9*time.Second)}, fast: true},
		"memory":                {v: verdict{calm: answers(1, 1), under: answers(1, 1), peak: 601, bound: 600}, want: "601 MiB resident"},
		"failed before it":      {v: verdict{calm: broken, under: answers(100, time.Second)}, want: "without an attack"},
		"all failed, none slow": {v: verdict{calm: answers(9, 1), under: []result{{fault: "reset"}}}, want: "1 of 1"},
	} {
		t.Run(name, func(t *testing.T) {
			c.v.judge(attack{}, options{fast: c.fast})
			if c.want == "" && len(c.v.faults) > 0 || c.want != "" && (len(c.v.faults) != 1 || !strings.Contains(c.v.faults[0], c.want)) {
				t.Errorf("faults %q, want %q", c.v.faults, c.want)
			}
		})
	}
}

func TestAttacksHaveNamesOfTheirOwn(t *testing.T) {
	var names []string
	for _, a := range all() {
		if a.name == "" || a.sends == "" || a.run == nil || slices.Contains(names, a.name) {
			t.Errorf("attack %q", a.name)
		}
		names = append(names, a.name)
	}
}
