package enginemodel

import (
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

// Sink receives the changes of the cache, in order. Changes of a step come from its Plan, which gives
// it blocks, and from its Complete.
type Sink interface {
	// Stored says that blocks from up to, not including, to of s have their keys.
	Stored(s *Sequence, from, to int)
	// Removed says that a block with this key was evicted; another may still have it.
	Removed(key blockhash.Hash)
}

// Counts are sums since the start.
type Counts struct {
	// PromptTokens were computed and GenerationTokens made; Queries and Hits count prompt tokens
	// looked for and found in the prefix cache. Loaded counts the prompt tokens found in tiers below the GPU, Received the tokens read from other machines.
	PromptTokens, GenerationTokens, Queries, Hits, Loaded, Received, Preemptions uint64
}

// Machine is one rank's scheduler. It is not safe for concurrent use.
type Machine struct {
	cfg     Config
	pool    *Pool
	sink    Sink
	waiting []*Sequence
	running []*Sequence
	counts  Counts

	below    below
	adapters residents
	loading  time.Duration // of adapters since the last step

	step     Step
	batch    []*Sequence // of the planned step
	out      []*Sequence // scratch of Complete
	reserved int         // blocks of the pool that the rest of the planned run needs
}

// New returns an idle machine. pool may be nil: the machine then has its own.
func New(cfg Config, pool *Pool, sink Sink) *Machine {
	if pool == nil {
		pool = NewPool(cfg.Blocks)
	}
	return &Machine{cfg: cfg, pool: pool, sink: sink}
}

// SetSpeed changes the speed of steps planned from now on.
func (m *Machine) SetSpeed(speed float64) { m.cfg.Timing.Speed = speed }

// Config is the argument of New, with the present speed.
func (m *Machine) Config() Config { return m.cfg }

// Pool is the machine's KV memory.
func (m *Machine) Pool() *Pool { return m.pool }

// Counts are the sums so far.
func (m *Machine) Counts() Counts { return m.counts }

// Running and Waiting are the sequences in order of admission and arrival; they must not be changed
// and are valid until the next call.
func (m *Machine) Running() []*Sequence { return m.running }

// Waiting is described at Running.
func (m *Machine) Waiting() []*Sequence { return m.waiting }

// Submit queues s.
func (m *Machine) Submit(s *Sequence) {
	s.state = waiting
	m.waiting = append(m.waiting, s)
}

// Abort ends s and frees its blocks at once; it reports false when s is not live. A step that is
// running takes as long as it was planned to, and its blocks stay in the cache. A run of
// several steps must be completed up to the running one, and planned again, before.
func (m *Machine) Abort(s *Sequence) bool {
	switch s.state {
	case running:
		m.running = remove(m.running, s)
	case waiting:
		m.waiting = remove(m.waiting, s)
	case reading: // in no queue
	case idle, ended:
		return false
	}
	m.end(s)
	return true
}

func remove(list []*Sequence, s *Sequence) []*Sequence {
	i := slices.Index(list, s)
	return slices.Delete(list, i, i+1)
}

// Reset empties the prefix cache. It refuses while a sequence holds blocks, as vLLM does.
func (m *Machine) Reset() bool { return m.pool.Clear() }

// end takes s, which is in no queue any more, out of the machine.
func (m *Machine) end(s *Sequence) {
	s.state = ended
	m.freeBlocks(s)
}

// freeBlocks releases the last blocks first, so that prefixes live longer.
func (m *Machine) freeBlocks(s *Sequence) {
	for _, b := range slices.Backward(s.blocks) {
		m.pool.release(b)
	}
	s.blocks, s.named, s.computed, s.planned = s.blocks[:0], 0, 0, 0
	if s.remote == arrived {
		s.remote = fetched
	}
}

// preempt sends the youngest running sequence back to the queue's head and returns it.
func (m *Machine) preempt() *Sequence {
	last := len(m.running) - 1
	s := m.running[last]
	m.running = m.running[:last]
	m.freeBlocks(s)
	s.state = waiting
	m.waiting = slices.Insert(m.waiting, 0, s)
	m.counts.Preemptions++
	return s
}

// grow gives s blocks for total tokens; false when there are too few.
func (m *Machine) grow(s *Sequence, total int) bool {
	need := m.cfg.blocksFor(total) - len(s.blocks)
	if need > m.pool.available() {
		return false
	}
	for range need {
		i, evicted := m.pool.take()
		if evicted != 0 {
			m.sink.Removed(evicted)
		}
		s.blocks = append(s.blocks, i)
	}
	return true
}

func (c *Config) blocksFor(tokens int) int {
	return (tokens + c.BlockSize - 1) / c.BlockSize
}

// admit gives a waiting sequence its cached blocks and blocks for its first tokens.
func (m *Machine) admit(s *Sequence, budget int) (n int, ok bool) {
	if s.remote == arrived { // it has its blocks
		s.remote, s.state = fetched, running
		return min(s.length()-s.computed, budget), true
	}
	hits, idle := m.prefix(s)
	cached := hits * m.cfg.BlockSize
	n = min(s.length()-cached, budget)
	must := cached + n
	if m.cfg.WholePrompts {
		must = s.length()
	}
	if m.cfg.blocksFor(must)-hits > m.pool.available()-idle {
		return 0, false
	}
	hold(m, s, hits)
	s.state = running
	m.grow(s, cached+n)
	return n, true
}

// hold gives s the cached blocks of its first keys.
func hold(m *Machine, s *Sequence, hits int) {
	s.blocks = s.blocks[:0]
	for _, k := range s.Keys[:hits] {
		i := m.pool.cached[k]
		m.pool.touch(i)
		s.blocks = append(s.blocks, i)
	}
	s.named, s.computed = hits, hits*m.cfg.BlockSize
	if !s.admitted {
		s.admitted, s.cached = true, s.computed
		m.counts.Queries += uint64(s.length())
		m.counts.Hits += uint64(s.computed)
	}
}

// prefix counts the leading blocks of s that are cached, and the ones among them that no sequence uses.
// The last token is always computed.
func (m *Machine) prefix(s *Sequence) (hits, idle int) {
	if m.cfg.NoCaching || s.NoHits {
		return 0, 0
	}
	for _, k := range s.Keys[:min(len(s.Keys), (s.length()-1)/m.cfg.BlockSize)] {
		i, ok := m.pool.cached[k]
		if !ok {
			break
		}
		hits++
		if m.pool.blocks[i].refs == 0 {
			idle++
		}
	}
	return hits, idle
}

// name gives the blocks of s that tokens fill their keys.
func (m *Machine) name(s *Sequence, tokens int) {
	if m.cfg.NoCaching {
		return
	}
	full := min(tokens/m.cfg.BlockSize, len(s.Keys))
	if full <= s.named {
		return
	}
	from := s.named
	for ; s.named < full; s.named++ {
		m.pool.name(s.blocks[s.named], s.Keys[s.named])
	}
	m.sink.Stored(s, from, full)
	m.below.keep(s, from, full)
}
