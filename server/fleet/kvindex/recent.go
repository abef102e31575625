package kvindex

import (
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// recentStores is how many of a rank's latest stores are remembered by their first block.
const recentStores = 256

// recent are the first blocks of a rank's latest stores in the prefix chain.
type recent struct {
	count uint64
	first [recentStores]blockhash.Hash
}

func (r *recent) add(key blockhash.Hash) {
	r.first[r.count%recentStores] = key
	r.count++
}

// Stores counts the stores that the rank has announced in its prefix chain.
func (ix *Index) Stores(slot replica.Slot) (n uint64) {
	ix.locked(slot, func(r *rank) { n = r.recent.count })
	return n
}

// StoredSince returns the first of the hashes that began a store since Stores was n: where an engine that
// computes this prompt had to begin. It is len(hashes) when none did, and known is false when there were
// too many stores to know.
func (ix *Index) StoredSince(slot replica.Slot, n uint64, hashes []blockhash.Hash) (at int, known bool) {
	at = len(hashes)
	ix.locked(slot, func(r *rank) {
		fresh := r.recent.count - n
		if known = fresh <= recentStores; !known || fresh == 0 {
			return
		}
		began := make(map[blockhash.Hash]struct{}, fresh)
		for i := n; i < r.recent.count; i++ {
			began[r.recent.first[i%recentStores]] = struct{}{}
		}
		for i, h := range hashes {
			if _, ok := began[h]; ok {
				at = i
				return
			}
		}
	})
	return at, known
}
