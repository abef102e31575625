package speed

import (
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Among few ranks every turn is all of them; among many it is a part, and each rank is visited once per round.
func TestTurnsVisitEveryRank(t *testing.T) {
	for _, all := range []int{1, atOnce, atOnce + 1, 1000} {
		ranks := make([]*Rank, all)
		for i := range ranks {
			ranks[i] = &Rank{}
		}
		now := time.Unix(0, 0)
		var k turns
		visited := map[*Rank]int{}
		parts := (all + atOnce - 1) / atOnce
		for range 3 * parts {
			part := k.take(ranks, now)
			if len(part) == 0 || len(part) > atOnce {
				t.Fatalf("%d ranks: a part has %d", all, len(part))
			}
			for _, r := range part {
				visited[r]++
			}
			if again := k.take(ranks, now.Add(followEvery-1)); len(again) > 0 {
				t.Fatalf("%d ranks: %d are visited before the next turn is due", all, len(again))
			}
			now = now.Add(followEvery)
		}
		for i, r := range ranks {
			if visited[r] != 3 {
				t.Fatalf("%d ranks: rank %d was visited %d times in 3 rounds", all, i, visited[r])
			}
		}
	}
}

// Ranks that were removed leave no gap, and no turn beyond the end.
func TestTurnsOutliveRemovedRanks(t *testing.T) {
	var k turns
	now := time.Unix(0, 0)
	ranks := make([]*Rank, 3*atOnce)
	for len(ranks) > 0 {
		if part := k.take(ranks, now); len(part) == 0 {
			t.Fatalf("no turn among %d ranks", len(ranks))
		}
		now = now.Add(followEvery)
		ranks = ranks[:len(ranks)-atOnce]
	}
	if part := k.take(nil, now); len(part) != 0 {
		t.Fatalf("%d of no ranks", len(part))
	}
}

// Each rank with new experience has a few ranks follow at once; among many ranks, each doubling of the experienced ones does.
func TestHurriedTurnsHaveNoPause(t *testing.T) {
	for _, c := range []struct{ all, rounds int }{{atOnce, atOnce}, {4 * atOnce, 7}} { // after 0, 1, 2, 4, 8, 16, 32
		now := time.Unix(0, 0)
		ranks := make([]*Rank, c.all)
		var k turns
		k.take(ranks, now)
		rounds := 0
		for known := range atOnce {
			k.hurry(known, c.all)
			visited := 0
			for part := k.take(ranks, now); len(part) > 0; part = k.take(ranks, now) {
				visited += len(part)
			}
			if visited == c.all {
				rounds++
			} else if visited != 0 {
				t.Fatalf("%d of %d ranks follow at once", visited, c.all)
			}
		}
		if rounds != c.rounds {
			t.Errorf("of %d ranks with new experience, %d had all %d follow at once, want %d", atOnce, rounds, c.all, c.rounds)
		}
	}
}

// The first rank that is known has thousands of others follow within as many samples as there are parts of them, whatever the time.
func TestManyRanksFollowTheFirstOneAtOnce(t *testing.T) {
	const many = 4000
	k := &kind{}
	ranks := make([]*Rank, many)
	for i := range ranks {
		ranks[i] = k.newRank()
	}
	now := time.Unix(0, 0)
	k.publish(ranks[0], &Model{Token: 4 * priorToken, Bend: priorBend, Samples: experienced, Source: decision.SpeedLearned})
	for range (many + atOnce - 1) / atOnce {
		k.learned(ranks[0], now)
	}
	for i, r := range ranks[1:] {
		if m := r.Model(); m.Source != decision.SpeedKind || m.Token != 4*priorToken {
			t.Fatalf("rank %d is taken for %+v", i+1, m)
		}
	}
}
