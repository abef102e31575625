package enginemodel

import (
	"slices"
	"sync"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// Lower is KV memory below the GPU, as vLLM's OffloadingConnector has it: host memory of one machine, or a store that several share. Each block that
// a machine computes is copied there at once, the least recently used one makes room, and blocks that continue a prompt are loaded before the
// rest is computed. It is safe for concurrent use.
type Lower struct {
	// Tier says which tier it is.
	Tier kvblock.Tier
	// Start is the time in seconds of a load of nothing, PerBlock the time of each block.
	Start, PerBlock float64
	room            int

	mu      sync.Mutex
	at      map[blockhash.Hash]int32 // guarded by mu
	entries []kept                   // guarded by mu
	head    int32                    // the least recently used one; guarded by mu
	tail    int32                    // guarded by mu
	// gone are the evicted blocks of each member of which it has not been informed, nil for one that has left; guarded by mu
	gone []*[]blockhash.Hash
}

// kept is a block in a Lower.
type kept struct {
	key        blockhash.Hash
	prev, next int32
	member     int32 // by which it was stored
}

// NewLower returns an empty tier of so many blocks.
func NewLower(tier kvblock.Tier, blocks int) *Lower {
	return &Lower{Tier: tier, room: blocks, at: map[blockhash.Hash]int32{}, head: none, tail: none}
}

// join returns the number of a new member.
func (l *Lower) join() int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = append(l.gone, new([]blockhash.Hash))
	return int32(len(l.gone) - 1)
}

// leave ends a membership. The member's blocks stay.
func (l *Lower) leave(member int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone[member] = nil
}

// put stores a block for a member, and reports whether it is new.
func (l *Lower) put(member int32, key blockhash.Hash) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i, ok := l.at[key]; ok {
		l.unlink(i)
		l.push(i)
		return false
	}
	i := int32(len(l.entries))
	if len(l.entries) < l.room {
		l.entries = append(l.entries, kept{})
	} else {
		i = l.head
		old := &l.entries[i]
		delete(l.at, old.key)
		if list := l.gone[old.member]; list != nil {
			*list = append(*list, old.key)
		}
		l.unlink(i)
	}
	l.entries[i].key, l.entries[i].member = key, member
	l.at[key] = i
	l.push(i)
	return true
}

// find reports whether a block is there; one that is counts as used.
func (l *Lower) find(key blockhash.Hash) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, ok := l.at[key]
	if ok {
		l.unlink(i)
		l.push(i)
	}
	return ok
}

// evicted returns the member's blocks that were evicted since the last call.
func (l *Lower) evicted(member int32) []blockhash.Hash {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.gone[member]
	if list == nil {
		return nil
	}
	keys := *list
	*list = nil
	return keys
}

func (l *Lower) push(i int32) {
	e := &l.entries[i]
	e.prev, e.next = l.tail, none
	if l.tail == none {
		l.head = i
	} else {
		l.entries[l.tail].next = i
	}
	l.tail = i
}

func (l *Lower) unlink(i int32) {
	e := &l.entries[i]
	if e.prev == none {
		l.head = e.next
	} else {
		l.entries[e.prev].next = e.next
	}
	if e.next == none {
		l.tail = e.prev
	} else {
		l.entries[e.next].prev = e.prev
	}
}

// LowerSink receives the changes of the tiers below the GPU, in order with the changes that the Sink receives.
type LowerSink interface {
	// Kept says that blocks from up to, not including, to of s are in the tier.
	Kept(tier kvblock.Tier, s *Sequence, from, to int)
	// Dropped says that a block that the machine has stored was evicted from the tier.
	Dropped(tier kvblock.Tier, key blockhash.Hash)
}

// Load is a load from tiers below the GPU that a plan begins.
type Load struct {
	Sequence *Sequence
	// Seconds is the time that it takes alone.
	Seconds float64
}

// below are the tiers below a machine's GPU, fastest first. The zero value has none.
type below struct {
	tiers   []*Lower
	members []int32
	sink    LowerSink
}

// AddTiers gives the machine tiers below the GPU, fastest first. It is called before the first Submit.
func AddTiers(m *Machine, sink LowerSink, tiers ...*Lower) {
	m.below.sink = sink
	for _, l := range tiers {
		m.below.tiers, m.below.members = append(m.below.tiers, l), append(m.below.members, l.join())
	}
}

// LeaveTiers ends the machine's part in its tiers: the engine has ended. A store keeps its blocks.
func LeaveTiers(m *Machine) {
	for t, l := range m.below.tiers {
		l.leave(m.below.members[t])
	}
}

// keep copies blocks of s to the tiers.
func (b *below) keep(s *Sequence, from, to int) {
	for t, l := range b.tiers {
		start := from
		for i := from; i < to; i++ {
			if l.put(b.members[t], s.Keys[i]) {
				continue
			}
			if i > start {
				b.sink.Kept(l.Tier, s, start, i)
			}
			start = i + 1
		}
		if to > start {
			b.sink.Kept(l.Tier, s, start, to)
		}
	}
}

// report informs the sink of blocks that were evicted.
func (b *below) report() {
	for t, l := range b.tiers {
		for _, key := range l.evicted(b.members[t]) {
			b.sink.Dropped(l.Tier, key)
		}
	}
}

// find counts the keys that lie in the tiers without a gap, and the time in seconds to load them.
func (b *below) find(keys []blockhash.Hash) (n int, seconds float64) {
	blocks := make([]int, len(b.tiers))
	for _, key := range keys {
		t := slices.IndexFunc(b.tiers, func(l *Lower) bool { return l.find(key) })
		if t < 0 {
			break
		}
		n++
		blocks[t]++
	}
	for t, count := range blocks {
		if count > 0 {
			seconds += b.tiers[t].Start + b.tiers[t].PerBlock*float64(count)
		}
	}
	return n, seconds
}

// load begins the load of the blocks by which the tiers continue the part of the first waiting sequence on the GPU, into memory for the whole sequence. It reports whether
// the sequence left the line, and whether it fits.
func load(m *Machine, s *Sequence) (left, fits bool) {
	if len(m.below.tiers) == 0 || s.Remote || s.remote == arrived || m.cfg.NoCaching || s.NoHits {
		return false, true
	}
	hits, idle := m.prefix(s)
	n, seconds := m.below.find(s.Keys[hits:max(hits, min(len(s.Keys), (s.length()-1)/m.cfg.BlockSize))])
	if n == 0 {
		return false, true
	}
	if m.cfg.blocksFor(s.length())-hits > m.pool.available()-idle {
		return false, false
	}
	m.waiting = remove(m.waiting, s)
	first := !s.admitted
	hold(m, s, hits)
	m.grow(s, s.length())
	s.state, s.loading = reading, n
	if first {
		s.cached += n * m.cfg.BlockSize
		m.counts.Loaded += uint64(n * m.cfg.BlockSize)
	}
	m.step.Loads = append(m.step.Loads, Load{Sequence: s, Seconds: seconds / m.cfg.Timing.Speed})
	return true, true
}
