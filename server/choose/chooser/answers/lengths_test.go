package answers

import (
	"strconv"
	"testing"
)

// What a caller says counts, then what its answers have been, within the limit of the request.
func TestTheExpectedLengthOfAnAnswer(t *testing.T) {
	var known Lengths
	for range 20 {
		known.Add("long", 2000)
		known.Add("short", 10)
	}
	for range 5 {
		known.Add("new", 40)
	}
	overall := known.all.mean
	for _, tt := range []struct {
		name          string
		of            *Lengths
		tenant        string
		hint, limit   int
		least, atMost int
	}{
		{"a hint counts", &known, "long", 700, 4096, 700, 700},
		{"a limit is no hint", &known, "long", 4096, 4096, 2000, 2000},
		{"no longer than the limit", &known, "long", 100, 100, 100, 100},
		{"of another tenant", &known, "short", 4096, 4096, 10, 10},
		{"neither hint nor limit", &known, "short", 0, 0, 10, 10},
		{"too few answers: as those of all", &known, "new", 4096, 4096, int(overall), int(overall) + 1},
		{"an unknown tenant", &known, "", 0, 0, int(overall), int(overall) + 1},
		{"nothing known, a limit", &Lengths{}, "", 4096, 4096, Usual, Usual},
		{"nothing known, a short limit", &Lengths{}, "", 5, 5, 5, 5},
		{"nothing known at all", &Lengths{}, "", 0, 0, 0, 0},
	} {
		if got := tt.of.Expected(tt.tenant, tt.hint, tt.limit); got < tt.least || got > tt.atMost {
			t.Errorf("%s: %d tokens, want %d to %d", tt.name, got, tt.least, tt.atMost)
		}
	}
	for range 300 { // its answers become longer
		known.Add("short", 500)
	}
	if got := known.mean("short"); got < 480 || got > 500 {
		t.Errorf("%d tokens after 300 answers of 500", got)
	}
	for i := range 2 * mostTenants {
		known.Add(strconv.Itoa(i), 1)
	}
	if len(known.tenant) > mostTenants {
		t.Errorf("%d tenants are kept", len(known.tenant))
	}
}

// Long answers weigh more than short ones, and less than their length: a load fades before they end.
func TestLongAnswersWeighMore(t *testing.T) {
	last := 0
	for _, tt := range []struct{ expected, want int }{{1, 1}, {100, 100}, {256, 256}, {1024, 512}, {4096, 1024}, {1 << 20, 2048}} {
		got := Counted(tt.expected)
		if got != tt.want || got <= last {
			t.Errorf("%d tokens count as %d, want %d", tt.expected, got, tt.want)
		}
		last = got
	}
	if Counted(0) != Usual {
		t.Error("an unknown length is not the usual one")
	}
}
