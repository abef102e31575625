package conduct

import (
	"sync/atomic"
	"time"
)

// clock counts the seconds that a rank had for decodes since it was added, as if it had a small load all the time: a second in which a step
// takes twice as long as then counts half.
type clock struct {
	// likely takes prefills into account as they are modelled.
	likely float64
	// least counts nothing while the rank prefills, most takes a prefill to slow no decode down.
	least, most float64
	// seconds is the time that has passed.
	seconds float64
}

func (c clock) since(from clock) clock {
	return clock{c.likely - from.likely, c.least - from.least, c.most - from.most, c.seconds - from.seconds}
}

// meter runs the clock of a rank by the load that it has. The rank's mu guards it.
type meter struct {
	clock clock
	at    time.Time
	// step and token are the times of a decode step under the rank's load, and of each token of prefill in it, relative to a decode step under a
	// small load; budget is the tokens of a full step.
	step, token, budget float64
	waiting             int     // streams without a first token
	prefill             float64 // their uncached tokens
}

// advance brings the clock up to now.
func (m *meter) advance(now time.Time) {
	passed := now.Sub(m.at).Seconds()
	if m.at.IsZero() || passed <= 0 || m.step <= 0 {
		if passed > 0 {
			m.at = now
		}
		return
	}
	m.at = now
	c := &m.clock
	c.seconds += passed
	c.most += passed / m.step
	if m.waiting == 0 {
		c.least += passed / m.step
		c.likely += passed / m.step
		return
	}
	c.likely += passed / (m.step + min(m.prefill, m.budget)*m.token)
}

// wait counts a prompt that is to be computed.
func (m *meter) wait(tokens float64) {
	m.waiting++
	m.prefill += tokens
}

// computed counts it as computed.
func (m *meter) computed(tokens float64) {
	if m.waiting--; m.waiting == 0 {
		m.prefill = 0 // no rounding stays
		return
	}
	m.prefill -= tokens
}

// Stream is one streamed answer of a rank. The zero value is not entered. It must not be copied or moved once it is.
type Stream struct {
	rank    *Rank
	tokens  atomic.Int64 // so far, as far as they were reported
	writing atomic.Bool  // the client is being given something
	// prefill is the uncached part of the prompt in tokens, parallel the number of answers that share the stream.
	prefill, parallel float64
	number            uint64
	probe, uneven     bool

	// The rest is guarded by the rank's mu.
	waits, runs bool // for its first token, and since
	mark        clock
	marked      int64 // tokens at mark
	prev, next  *Stream
}

// Begin notes the first token.
func (s *Stream) Begin(now time.Time) {
	r := s.rank
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !s.waits {
		return
	}
	r.meter.advance(now)
	s.waits = false
	r.meter.computed(s.prefill)
	s.runs, s.mark, s.marked = true, r.meter.clock, s.tokens.Load()
	if s.next = r.streams; s.next != nil {
		s.next.prev = s
	}
	r.streams = s
}

// Progress notes the tokens given so far.
func (s *Stream) Progress(tokens int) {
	if s.rank != nil {
		s.tokens.Store(int64(tokens))
	}
}

// Writing notes that the client is being given something, or that this is over. Time that a client takes to read is not the rank's.
func (s *Stream) Writing(yes bool) {
	if s.rank != nil {
		s.writing.Store(yes)
	}
}

// End notes the end of the stream, after tokens in all; whole says that the answer was complete and that the number is right. Later calls do
// nothing.
func (s *Stream) End(now time.Time, tokens int, whole bool) {
	r := s.rank
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meter.advance(now)
	if s.waits {
		s.waits = false
		r.meter.computed(s.prefill)
	}
	if !s.runs {
		return
	}
	s.runs = false
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		r.streams = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	}
	s.prev, s.next = nil, nil
	made, slack := s.tokens.Load(), float64(unreported)
	if whole && int64(tokens) >= made {
		made, slack = int64(tokens), 0
	}
	p, n := r.meter.clock.since(s.mark), float64(made-s.marked)
	if s.uneven && !whole || s.writing.Load() || n < leastTokens && p.seconds < leastTime {
		return
	}
	r.take(s, paceOf(p, n/s.parallel, slack/s.parallel), now)
}
