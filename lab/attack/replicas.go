package main

import (
	"context"
	"fmt"
	"time"
)

// replicaAttacks are replicas that lie. The liar is r0.
func replicaAttacks() []attack {
	idle := func(ctx context.Context, _ *world) error { <-ctx.Done(); return nil }
	return []attack{
		{name: "liar", sends: "a replica with an instant first token and one token per second, 3 honest ones", slower: true, least: 25 * time.Second, run: idle,
			fleet: fleet{replicas: 4, fronts: []manners{eager}}, check: share(0.10)},
		{name: "empty-streams", sends: "a replica whose answers are empty and end well, 3 honest ones", slower: true, fast: true, run: idle,
			fleet: fleet{replicas: 4, fronts: []manners{empty}}, check: share(0.10), least: 15 * time.Second},
		{name: "slow-decode", sends: "a replica that decodes six times slower, with honest first tokens", slower: true, run: idle,
			fleet: fleet{replicas: 4, fronts: []manners{slowed}, rate: 15}, least: 25 * time.Second, check: share(0.05)},
		{name: "boastful-usage", sends: "a replica that reports 10^12 prompt tokens, to tenants with limits", fast: true, run: idle,
			fleet: fleet{fronts: []manners{boastful}, settings: "tenants: {default: {tokens_per_minute: 4000000}}\n"}},
	}
}

// share checks the liar's share of the requests sent once the router had time to notice, and reports how long its answers take and
// the others'.
func share(most float64) func(*world) (string, []string) {
	return func(w *world) (string, []string) {
		var liar, others []result
		for _, r := range w.attacked {
			switch {
			case r.at.Before(w.began.Add(settle)) || r.fault != "":
			case r.replica == "r0":
				liar = append(liar, r)
			default:
				others = append(others, r)
			}
		}
		got := float64(len(liar)) / max(1, float64(len(liar)+len(others)))
		note := fmt.Sprintf("%.0f %% of the traffic went to it (%d requests); whole answers p50 %s, of the others %s",
			100*got, len(liar), round(quantile(liar, 0.5)), round(quantile(others, 0.5)))
		if got > most || len(others) == 0 {
			return note, []string{fmt.Sprintf("the share is above %.0f %%", 100*most)}
		}
		return note, nil
	}
}
