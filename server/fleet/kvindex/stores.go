package kvindex

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// stores are the ranks by the store that they share. The zero value has none. Lookups read the list without a lock.
type stores struct {
	list atomic.Pointer[[]store] // nil: no rank shares one

	mu sync.Mutex
	of map[replica.Slot]string // guarded by mu
}

// store is the ranks that share one store, as a set.
type store struct {
	name  string
	ranks []uint64
}

func (s *store) has(slot replica.Slot) bool { return s.ranks[slot/64]>>(slot%64)&1 != 0 }

// set makes a rank one of a store's, or of none. words is the size of sets.
func (s *stores) set(slot replica.Slot, name string, words int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[slot] == name {
		return
	}
	if s.of == nil {
		s.of = map[replica.Slot]string{}
	}
	if s.of[slot] = name; name == "" {
		delete(s.of, slot)
	}
	if len(s.of) == 0 {
		s.list.Store(nil)
		return
	}
	var list []store
	for slot, name := range s.of {
		i := 0
		for i < len(list) && list[i].name != name {
			i++
		}
		if i == len(list) {
			list = append(list, store{name: name, ranks: make([]uint64, words)})
		}
		list[i].ranks[slot/64] |= 1 << (slot % 64)
	}
	s.list.Store(&list)
}

// share has each rank of a store hold the blocks of hashes that the store continues its own with, and appends the ranks that hold the beginning there
// only. The engines of a store name blocks alike, so all of them load the blocks that one has announced.
func (l *lookup) share(dst []Overlap, base int, hashes []blockhash.Hash, s *store) []Overlap {
	p, k := l.tiers[kvblock.TierDisk], l.strideOf(s)
	held := uint32(k * lead(0, len(hashes)/k, func(chunk int) bool { return l.sets.meet(p.get(spread(hashes[(chunk+1)*k-1])), s.ranks) }))
	if held == 0 {
		return dst
	}
	var room [MaxRanks / 64]uint64
	seen := room[:l.sets.words]
	for i := range dst[base:] {
		o := &dst[base+i]
		seen[o.Slot/64] |= 1 << (o.Slot % 64)
		if s.has(o.Slot) && held > o.reach()+o.Disk {
			o.Disk = held - o.reach()
		}
	}
	for i, w := range s.ranks {
		for w &^= seen[i]; w != 0; w &= w - 1 {
			dst = append(dst, Overlap{Slot: replica.Slot(i*64 + bits.TrailingZeros64(w)), Disk: held})
		}
	}
	return dst
}

// strideOf is how many blocks a chunk of the store has.
func (l *lookup) strideOf(s *store) int {
	k := 1
	if l.strides[kvblock.TierDisk].Load() == 0 {
		return k
	}
	for i, w := range s.ranks {
		for ; w != 0; w &= w - 1 {
			k = max(k, l.stride(replica.Slot(i*64+bits.TrailingZeros64(w)), kvblock.TierDisk))
		}
	}
	return k
}

// meet reports whether any of the ranks is in the set id.
func (t *setTable) meet(id uint32, ranks []uint64) bool {
	if id < singles {
		return id != 0 && ranks[(id-1)/64]>>((id-1)%64)&1 != 0
	}
	m := t.members(id)
	for i := range m {
		if atomic.LoadUint64(&m[i])&ranks[i] != 0 {
			return true
		}
	}
	return false
}
