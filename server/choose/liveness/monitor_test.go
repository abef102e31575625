package liveness_test

import (
	"slices"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/liveness"
)

var start = time.Unix(1_000_000, 0)

// rounds looks at the monitor until the given time after start and returns the last verdict.
func rounds(m *liveness.Monitor, from, to time.Duration, vitals func(time.Time) liveness.Vitals) (now liveness.Evidence) {
	for at := from; at < to; at += liveness.Period {
		v := vitals(start.Add(at))
		_, now = m.Look(&v, liveness.Round{Now: start.Add(at), Passed: liveness.Period, After: 2 * time.Second, Elsewhere: start.Add(at), SpeedKnown: true})
	}
	return now
}

func blind(time.Time) liveness.Vitals { return liveness.Vitals{} }

func TestASilentRankStallsAndASignOfLifeEndsIt(t *testing.T) {
	var m liveness.Monitor
	if got := rounds(&m, 0, time.Minute, blind); got != liveness.None {
		t.Fatalf("an idle rank: %s", got)
	}
	m.Enter(&liveness.Request{At: start, Streamed: true, Movable: true, Withdrawable: true})
	if got := rounds(&m, 0, 9*time.Second, blind); got != liveness.None || m.Avoided(start) {
		t.Fatalf("silent for less than five times stall.after: %s", got)
	}
	if got := rounds(&m, 9*time.Second, 12*time.Second, blind); got != liveness.Silence || !m.Avoided(start.Add(12*time.Second)) {
		t.Fatalf("silent for longer: %s", got)
	}
	if n := len(m.Movable(false)); n != 1 {
		t.Errorf("%d requests may move, want 1", n)
	}
	m.Sign()
	if got := rounds(&m, 12*time.Second, 12*time.Second+liveness.Period, blind); got != liveness.None || m.Avoided(start.Add(13*time.Second)) || len(m.Movable(false)) != 0 {
		t.Errorf("after a sign of life: %s", got)
	}
}

func TestCountersThatStandStillStallSooner(t *testing.T) {
	var m liveness.Monitor
	m.Enter(&liveness.Request{At: start, Streamed: true})
	count := uint64(0)
	counted := func(now time.Time) liveness.Vitals { return liveness.Vitals{Counted: now, Count: count} }
	for at := time.Duration(0); at < 5*time.Second; at += liveness.Period {
		count++
		if got := rounds(&m, at, at+liveness.Period, counted); got != liveness.None {
			t.Fatalf("counters that grow: %s", got)
		}
	}
	if got := rounds(&m, 5*time.Second, 8*time.Second, counted); got != liveness.Counters {
		t.Errorf("counters that stand still: %s", got)
	}
}

func TestTheOldestBookingsThatTheEngineDoesNotReportAreMissing(t *testing.T) {
	var m liveness.Monitor
	old, young := &liveness.Request{At: start}, &liveness.Request{At: start.Add(time.Second)}
	m.Lend(young)
	m.Lend(old)
	now := start.Add(3 * time.Second)
	if list, ask := m.Missing(&liveness.Vitals{Counted: start}, now); len(list) != 0 || !ask {
		t.Errorf("old vitals: %d missing, ask %v, want newer vitals", len(list), ask)
	}
	if list, _ := m.Missing(&liveness.Vitals{Counted: now, Requests: 1}, now); !slices.Equal(list, []*liveness.Request{old}) {
		t.Errorf("one of two reported: %v, want the older booking", list)
	}
	m.Settle(old)
	if list, _ := m.Missing(&liveness.Vitals{Counted: now}, now); !slices.Equal(list, []*liveness.Request{young}) {
		t.Errorf("none reported: %v, want the younger booking", list)
	}
}
