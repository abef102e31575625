package tokenizer

import (
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

// names are the part of an entry that a request in flight needs after its prompt was encoded: half a byte for each token, where the
// ids take four.
type names struct {
	// length is the number of the ids.
	length int
	// derived is set when the ids were joined from a known beginning and a delta instead of
	// coming from one answer.
	derived bool
	// steps are the steps by which a derived entry was joined.
	steps []step
	// answered packs the rank that last answered the prompt, plus one, and the answer's tokens; zero for none.
	answered atomic.Uint64

	mu     sync.Mutex
	hashes []hashes // guarded by mu; newest last, few
}

// hashes are the block hashes of an entry's ids for one block size and namespace.
type hashes struct {
	blockSize int
	ns        blockhash.Namespace
	list      []blockhash.Hash
}

// maxHashLists bounds the lists kept per entry; replicas of a pool rarely differ.
const maxHashLists = 3

// find returns the list for a block size and namespace, nil when there is none; mu is held.
func (n *names) find(blockSize int, ns blockhash.Namespace) *hashes {
	for i := range n.hashes {
		if h := &n.hashes[i]; h.blockSize == blockSize && h.ns == ns {
			return h
		}
	}
	return nil
}

// hashed returns the hashes of the complete blocks among the first ids, as far as they were computed before.
func (n *names) hashed(ids, blockSize int, ns blockhash.Namespace) []blockhash.Hash {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.find(blockSize, ns)
	if h == nil {
		return nil
	}
	want := min(ids/blockSize, len(h.list))
	return h.list[:want:want]
}

// bytes is the names' size in memory, with one list of hashes at the smallest usual block.
func (n *names) bytes() int { return n.length/2 + 200 }
