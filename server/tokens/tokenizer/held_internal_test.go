package tokenizer

import (
	"math/rand/v2"
	"testing"
)

// An entry is counted once, however many requests hold it, and not at all when all have ended.
func TestHeldEntriesAreCountedOnce(t *testing.T) {
	h := &held{limit: 100_000}
	entries := make([]*entry, 40)
	for i := range entries {
		entries[i] = &entry{ids: make([]uint32, 100*i)}
	}
	r := rand.New(rand.NewPCG(1, 2))
	var taken []*entry
	for range 20_000 {
		if r.IntN(2) == 0 && len(taken) > 0 {
			i := r.IntN(len(taken))
			h.release(taken[i])
			taken[i] = taken[len(taken)-1]
			taken = taken[:len(taken)-1]
		} else if e := entries[r.IntN(len(entries))]; h.take(e) {
			taken = append(taken, e)
		}
		want, seen := int64(0), map[*entry]bool{}
		for _, e := range taken {
			if !seen[e] {
				seen[e], want = true, want+int64(e.bytes())
			}
		}
		if h.now() != want || want > h.limit {
			t.Fatalf("%d bytes are counted, want %d", h.now(), want)
		}
		if len(taken) > 200 {
			h.release(taken[0])
			taken = taken[1:]
		}
	}
}
