package enginemodel

import "github.com/kvpilot/kvpilot/server/domain/blockhash"

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
	}
	m.Unpin(blocks)
}

// Strand takes n blocks out of use for good, as far as there are so many.
func (m *Machine) Strand(n int) {
	for range min(n, m.pool.available()) {
		if _, evicted := m.pool.take(); evicted != 0 {
			m.sink.Removed(evicted)
		}
	}
}
