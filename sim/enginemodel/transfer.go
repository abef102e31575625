package enginemodel

import (
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

// Pin keeps the leading blocks that the keys name from being evicted, until Unpin of its result.
func (m *Machine) Pin(keys []blockhash.Hash) []int32 {
	blocks := make([]int32, 0, len(keys))
	for _, k := range keys {
		i, ok := m.pool.cached[k]
		if !ok {
			break
		}
		m.pool.touch(i)
		blocks = append(blocks, i)
	}
	return blocks
}

// Unpin ends a Pin.
func (m *Machine) Unpin(blocks []int32) {
	for i := len(blocks) - 1; i >= 0; i-- {
		m.pool.release(blocks[i])
	}
}

// Receive puts the full blocks of the prompt of s, which was not submitted yet, into the cache without computing them, as far as there is
// memory: they were read from another engine.
func (m *Machine) Receive(s *Sequence) {
	if m.cfg.NoCaching {
		return
	}
	full := min(len(s.Keys), s.Prompt/m.cfg.BlockSize)
	blocks := m.Pin(s.Keys[:full])
	from := len(blocks)
	for _, k := range s.Keys[from:full] {
		if m.pool.available() == 0 {
			break
		}
		i, evicted := m.pool.take()
		if evicted != 0 {
			m.sink.Removed(evicted)
		}
		m.pool.name(i, k)
		blocks = append(blocks, i)
	}
	if len(blocks) > from {
		m.sink.Stored(s, from, len(blocks))
		m.counts.Received += uint64((len(blocks) - from) * m.cfg.BlockSize)
	}
	m.Unpin(blocks)
}

// fetch gives the first sequence in line, whose prompt was computed elsewhere, memory for all of it, and begins its transfer; false when there
// is too little.
func fetch(m *Machine, s *Sequence) bool {
	hits, idle := m.prefix(s)
	if m.cfg.blocksFor(s.length())-hits > m.pool.available()-idle {
		return false
	}
	m.waiting = remove(m.waiting, s)
	hold(m, s, hits)
	m.grow(s, s.length())
	s.state, s.remote = reading, fetched
	m.step.Reads = append(m.step.Reads, s)
	return true
}

// Arrive says that the cache of a sequence of Step.Reads or Step.Loads is there. It is scheduled before all that wait, and computes the rest: of a
// Remote one, its last token. It does nothing for one that was aborted.
func (m *Machine) Arrive(s *Sequence) {
	if s.state != reading {
		return
	}
	s.state, s.remote = waiting, arrived
	if s.loading > 0 {
		s.computed += s.loading * m.cfg.BlockSize
		s.loading = 0
		m.name(s, s.computed)
	} else {
		s.computed = s.Prompt - 1
		m.name(s, s.Prompt)
	}
	m.waiting = slices.Insert(m.waiting, 0, s)
}

// Strand takes n blocks out of use for good, as far as there are so many.
func (m *Machine) Strand(n int) {
	for range min(n, m.pool.available()) {
		if _, evicted := m.pool.take(); evicted != 0 {
			m.sink.Removed(evicted)
		}
	}
}
