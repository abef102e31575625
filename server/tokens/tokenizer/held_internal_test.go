package tokenizer

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// An entry is counted once, however many requests hold it, and not at all when all have ended.
func TestHeldEntriesAreCountedOnce(t *testing.T) {
	h := &held{limit: 100_000}
	entries := make([]*entry, 40)
	for i := range entries {
		entries[i] = newEntry(make([]uint32, 100*i))
	}
	r := rand.New(rand.NewPCG(1, 2))
	var taken []*entry
	for range 20_000 {
		if r.IntN(2) == 0 && len(taken) > 0 {
			i := r.IntN(len(taken))
			h.release(taken[i])
			taken[i] = taken[len(taken)-1]
			taken = taken[:len(taken)-1]
		} else if e := entries[r.IntN(len(entries))]; h.take(e, e.bytes(), h.limit) {
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

func TestBlockSizesAreNotedOnceInOrder(t *testing.T) {
	var sizes blockSizes
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				sizes.note(16)
			}
		})
	}
	all.Wait()
	for _, size := range []int{32, 16, 64, 128, 32} {
		sizes.note(size)
	}
	if got := sizes.known(); !slices.Equal(got, []int{16, 32, 64}) {
		t.Errorf("noted %v, want the first three of different value", got)
	}
}

// Before any block of a model was named, its replicas say what sizes there are.
func TestIDsAreLetGoForTheReplicasBlockSizes(t *testing.T) {
	e := newEntry(make([]uint32, 640))
	enc := &Encoding{IDs: e.ids, entry: e, names: e.names, remains: remains{sizes: new(blockSizes)}}
	enc.letGo([]*replica.Replica{{BlockSize: 64}, {}, {BlockSize: 64}})
	if a, b, c := len(enc.Hashes(64, enc.remains.ns)), len(enc.Hashes(defaultBlock, enc.remains.ns)), len(enc.Hashes(32, enc.remains.ns)); a != 10 || b != 40 || c != 0 {
		t.Errorf("%d, %d and %d blocks are named, want 10 of 64, 40 of 16 and none of 32", a, b, c)
	}
}
