package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// replicaAttacks are replicas that lie. The liar is r0.
func replicaAttacks() []attack {
	idle := func(ctx context.Context, _ *world) error { <-ctx.Done(); return nil }
	return []attack{
		{name: "liar", sends: "a replica with an instant first token and one token per second, 3 honest ones", slower: true, least: 25 * time.Second, run: idle,
			fleet: fleet{replicas: 4, fronts: []manners{eager}}, check: share(0.10, 0)},
		{name: "empty-streams", sends: "a replica whose answers are empty and end well, 3 honest ones", slower: true, fast: true, run: idle,
			fleet: fleet{replicas: 4, fronts: []manners{empty}}, check: share(0.10, 0), least: 15 * time.Second},
		{name: "slow-decode", sends: "a replica that decodes six times slower, with honest first tokens", slower: true, least: 25 * time.Second, run: idle,
			fleet: fleet{replicas: 4, fronts: []manners{slowed}, rate: 15}, check: share(1, 2)},
		{name: "boastful-usage", sends: "a replica that reports 10^12 prompt tokens, to tenants with limits", fast: true, run: idle,
			fleet: fleet{fronts: []manners{boastful}, settings: "tenants: {default: {tokens_per_minute: 4000000}}\n"}},
	}
}

// share checks the liar's share of the requests sent once the router had time to notice, and how long its answers take relative to
// the others'. A share of 1 and a ratio of 0 are not checked.
func share(most, ratio float64) func(*world) (string, []string) {
	return func(w *world) (string, []string) {
		var liar, others []time.Duration
		for _, r := range w.attacked {
			switch {
			case r.at.Before(w.began.Add(settle-5*time.Second)) || r.fault != "":
			case r.replica == "r0":
				liar = append(liar, r.took)
			default:
				others = append(others, r.took)
			}
		}
		got := float64(len(liar)) / max(1, float64(len(liar)+len(others)))
		note := fmt.Sprintf("%.0f %% of the traffic went to it", 100*got)
		var faults []string
		if got > most || len(others) == 0 {
			faults = append(faults, fmt.Sprintf("the share is above %.0f %%", 100*most))
		}
		if ratio > 0 && len(liar) > 0 {
			slices.Sort(liar)
			slices.Sort(others)
			a, b := liar[len(liar)/2], others[len(others)/2]
			note += fmt.Sprintf(", whole answers p50 %s, of the others %s", round(a), round(b))
			if float64(a) > ratio*float64(b) {
				faults = append(faults, fmt.Sprintf("its answers take more than %.0f times as long", ratio))
			}
		}
		return note, faults
	}
}
