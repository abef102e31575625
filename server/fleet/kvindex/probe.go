package kvindex

import (
	"math/bits"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

// together is how many probes wait for memory at the same time: about as many misses as a core
// has room for.
const together = 24

// getAll sets ids to the sets that hold the blocks at the given positions of hashes.
func (p *plane) getAll(ids []uint32, hashes []blockhash.Hash, at []int32) {
	var lines [together]*[bucketSlots]uint64
	var tags [together]uint64
	for len(at) > 0 {
		n := min(len(at), together)
		for i, pos := range at[:n] {
			m := spread(hashes[pos])
			t := p.tabs[m>>(64-shardBits)].Load()
			tags[i] = tagOf(m)
			lines[i] = t.bucket(t.home(tags[i]))
		}
		for _, line := range lines[:n] {
			atomic.LoadUint64(&line[0]) // nothing but loads, so that the next begins before this one ends
		}
		for i, line := range lines[:n] {
			tag := tags[i]
			w := only(&line[0], tag) | only(&line[1], tag) | only(&line[2], tag) | only(&line[3], tag) |
				only(&line[4], tag) | only(&line[5], tag) | only(&line[6], tag) | only(&line[7], tag)
			if ids[i] = uint32(w & idMask); w&idMask == 0 && atomic.LoadUint64(&line[classOf(tag)])&passed != 0 {
				ids[i] = p.get(spread(hashes[at[i]]))
			}
		}
		at, ids = at[n:], ids[n:]
	}
}

// only returns the slot's word when it has the tag, and 0 otherwise. It takes no branches: in
// which slot a tag lies is not to be predicted.
func only(slot *uint64, tag uint64) uint64 {
	w := atomic.LoadUint64(slot)
	_, same := bits.Sub64(w^tag, 1<<tagShift, 0)
	return w & -same
}
