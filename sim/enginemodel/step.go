package enginemodel

import (
	"slices"
	"sort"
)

// Step is the result of Plan: one step, or a run of steps in which the same sequences decode.
type Step struct {
	// Steps is 0 when there is nothing to compute.
	Steps int
	// PromptTokens are the prompt tokens that the step computes; a run computes none.
	PromptTokens int
	// Reads are the Remote sequences whose transfer begins now.
	Reads []*Sequence
	// Loads are the loads from tiers below the GPU that begin now. Their sequences wait for Arrive.
	Loads []Load
	// once is the time before the first step in which adapters are loaded, first is the time of the first step, growth what each later one takes longer than the one
	// before, both in seconds.
	once, first, growth float64
}

// Seconds is the time of the first n steps.
func (s *Step) Seconds(n int) float64 {
	f := float64(n)
	return s.once + f*s.first + s.growth*f*(f-1)/2
}

// Ended is how many steps have ended at elapsed seconds.
func (s *Step) Ended(elapsed float64) int {
	return sort.Search(s.Steps, func(i int) bool { return s.Seconds(i+1) > elapsed })
}

// Plan chooses the tokens of the next step and gives them blocks: first for the sequences that run,
// in order, then for waiting ones. Nothing may be planned and not completed when it is called.
//
// When the step only decodes, Plan plans up to limit steps, as long as no sequence reaches its end
// and no block is missing. Sequences that are submitted then wait until the run is completed; the
// driver completes fewer steps of it for them.
func (m *Machine) Plan(limit int) *Step {
	m.batch, m.step, m.adapters.step = m.batch[:0], Step{Reads: m.step.Reads[:0], Loads: m.step.Loads[:0]}, m.adapters.step[:0]
	m.below.report()
	t := &m.cfg.Timing
	budget := m.cfg.MaxBatchedTokens
	decoding, context, prefill := 0, 0, 0.0
	add := func(s *Sequence, n int) {
		if n == 1 && s.computed >= s.Prompt {
			decoding++
			context += s.computed
		} else {
			prefill += t.Prefill(n, s.computed)
			m.step.PromptTokens += n
		}
		s.planned = n
		m.adapters.join(s.Adapter)
		m.name(s, s.computed+n)
		m.batch = append(m.batch, s)
		budget -= n
	}
	preempted := false
	for i := 0; i < len(m.running) && budget > 0; i++ {
		s := m.running[i]
		n := min(s.length()-s.computed, budget)
		for !m.grow(s, s.computed+n) {
			preempted = true
			if m.preempt() == s {
				n = 0
				break
			}
		}
		if n > 0 {
			add(s, n)
		}
	}
	for at := 0; !preempted && budget > 0 && at < len(m.waiting) && len(m.running) < m.cfg.MaxSeqs; {
		s := m.waiting[at]
		if !m.adapters.fits(&m.cfg.Adapters, s.Adapter) {
			at++ // others behind it go first, as in vLLM
			continue
		}
		if s.Remote && s.remote == missing {
			if !fetch(m, s) {
				break
			}
			continue
		}
		if left, fits := load(m, s); !fits {
			break
		} else if left {
			continue
		}
		n, ok := m.admit(s, budget)
		if !ok {
			break
		}
		m.waiting = slices.Delete(m.waiting, at, at+1)
		m.running = append(m.running, s)
		add(s, n)
	}
	if len(m.batch) == 0 {
		return &m.step
	}
	m.step.Steps = 1
	m.step.once = (m.loading + m.adapters.fetch(&m.cfg.Adapters)).Seconds() / t.Speed
	m.loading = 0
	m.step.first = (t.Base.Seconds() + t.PerSequence.Seconds()*float64(decoding) + t.PerContextToken.Seconds()*float64(context) + prefill) / t.Speed
	if limit > 1 && !preempted && len(m.batch) == decoding && len(m.batch) == len(m.running) {
		m.extend(limit)
		m.step.growth = t.PerContextToken.Seconds() * float64(decoding) / t.Speed
	}
	return &m.step
}

// extend makes the planned step, in which every running sequence decodes, the first of a run.
func (m *Machine) extend(limit int) {
	for _, s := range m.batch {
		limit = min(limit, s.Most-s.made)
	}
	if m.need(limit-1) > m.pool.available() {
		limit = sort.Search(limit, func(n int) bool { return m.need(n) > m.pool.available() })
	}
	m.step.Steps = max(1, limit)
	m.reserved = m.need(m.step.Steps - 1)
	m.pool.reserved += m.reserved
}

// need is how many blocks n steps after the planned one take.
func (m *Machine) need(n int) int {
	blocks := 0
	for _, s := range m.batch {
		blocks += m.cfg.blocksFor(s.computed+s.planned+n) - len(s.blocks)
	}
	return blocks
}

// Complete ends the first n of the planned steps: computed tokens count, and sequences that have no
// more to compute get their next token. It returns those; the slice is valid until the next call.
// A sequence that has reached its end is not Live any more. The driver may Abort others.
func (m *Machine) Complete(n int) []*Sequence {
	m.pool.reserved -= m.reserved
	m.reserved = 0
	m.out = m.out[:0]
	over := false
	for _, s := range m.batch {
		if s.planned == 0 {
			continue // aborted
		}
		if s.computed < s.Prompt {
			m.counts.PromptTokens += uint64(min(s.computed+s.planned, s.Prompt) - s.computed)
		}
		s.computed += s.planned
		s.planned = 0
		if s.computed < s.length() {
			continue
		}
		made := min(n, s.Most)
		if n > 1 {
			s.computed += n - 1
			m.grow(s, s.computed)
		}
		s.made += made
		m.counts.GenerationTokens += uint64(made)
		m.name(s, s.computed)
		if s.made >= s.Most {
			m.end(s)
			over = true
		}
		m.out = append(m.out, s)
	}
	if over {
		m.running = slices.DeleteFunc(m.running, func(s *Sequence) bool { return s.state != running })
	}
	m.batch = m.batch[:0]
	return m.out
}
