package liveness_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/liveness"
)

// An engine that is paused is avoided at once and until it says otherwise, requests or not. What it leaves silent moves soon.
func TestAHaltedRankIsAvoided(t *testing.T) {
	halted := func(time.Time) liveness.Vitals { return liveness.Vitals{Halted: true} }
	var m liveness.Monitor
	if got := rounds(&m, 0, liveness.Period, halted); got != liveness.Halted || !m.Avoided(start.Add(time.Hour)) {
		t.Fatalf("an idle rank that is halted: %s", got)
	}
	stream := &liveness.Request{At: start, Streamed: true, Withdrawable: true, Prefill: 60}
	stream.SetResumable(true)
	m.Enter(stream)
	m.Enter(&liveness.Request{At: start, Streamed: true, Withdrawable: true, Movable: true, Prefill: 60})
	if m.Sign(); rounds(&m, liveness.Period, 2*liveness.Period, halted) != liveness.Halted || len(m.Movable(false)) != 0 {
		t.Error("requests that a paused engine finishes are withdrawn")
	}
	if rounds(&m, time.Second, 2*time.Second, halted); len(m.Movable(false)) != 2 {
		t.Errorf("%d requests may move, want both", len(m.Movable(false)))
	}
	if got := rounds(&m, 2*time.Second, 3*time.Second, blind); got != liveness.None || m.Avoided(start.Add(3*time.Second)) || m.Stalled() {
		t.Errorf("after the pause: %s", got)
	}
}

// The tally counts a rank while it counts as stalled, and no longer once it is gone.
func TestTheTallyCountsStalledRanks(t *testing.T) {
	var tally atomic.Int64
	halted := func(time.Time) liveness.Vitals { return liveness.Vitals{Halted: true} }
	ranks := make([]liveness.Monitor, 3)
	for i := range ranks {
		ranks[i].Count(&tally)
		rounds(&ranks[i], 0, 2*liveness.Period, halted)
	}
	if got := tally.Load(); got != 3 {
		t.Errorf("of three ranks that are halted, %d are counted", got)
	}
	rounds(&ranks[0], 2*liveness.Period, 4*liveness.Period, blind)
	ranks[1].Forget()
	ranks[1].Forget()
	if got := tally.Load(); got != 1 {
		t.Errorf("after one works again and one is gone, %d are counted, want 1", got)
	}
}
