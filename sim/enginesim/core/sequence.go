package core

import (
	"context"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

// Finish says why a sequence ended.
type Finish uint8

// The reasons.
const (
	Running Finish = iota
	FinishStop
	FinishLength
	FinishAbort
)

// String gives the reason as vLLM's metrics and answers write it.
func (f Finish) String() string {
	switch f {
	case FinishStop:
		return "stop"
	case FinishLength:
		return "length"
	case FinishAbort:
		return "abort"
	case Running:
	}
	return ""
}

// Params describe a sequence.
type Params struct {
	// Prompt are the token ids; the core keeps the slice.
	Prompt []uint32
	Space  Space
	// Next gives the token at place i of the answer. Nil: nothing is generated, only computed.
	Next func(i int) uint32
	// MaxTokens and MinTokens bound the answer.
	MaxTokens, MinTokens int
	// End is the id that ends an answer unless IgnoreEnd; StopIDs end it too.
	End       uint32
	IgnoreEnd bool
	StopIDs   []uint32
	// NoHits makes the sequence compute its whole prompt.
	NoHits bool
	// Pin has the prompt's blocks kept after the end.
	Pin Pin
	// Ready, when not nil, is nudged instead of a channel of the sequence's own: a reader of
	// several sequences waits for one. It needs room for one value.
	Ready chan struct{}
}

// Timings are the moments of a sequence's life; zero when not reached.
type Timings struct {
	Arrived, Scheduled, FirstToken, Done time.Time
}

// Sequence is one prompt and its answer. Take and Ready are its reader's side.
type Sequence struct {
	p      Params
	prompt int // length

	// The scheduler's, guarded by Core.mu.
	m         enginemodel.Sequence
	tokens    []uint32
	scheduled bool

	mu     sync.Mutex
	out    []uint32 // guarded by mu: generated and not yet taken
	finish Finish   // guarded by mu
	stopID int64    // guarded by mu; -1 unless a stop id ended it
	cached int      // guarded by mu
	times  Timings  // guarded by mu
}

// NewSequence prepares a sequence for Submit.
func NewSequence(p Params) *Sequence {
	if p.Ready == nil {
		p.Ready = make(chan struct{}, 1)
	}
	s := &Sequence{p: p, prompt: len(p.Prompt), tokens: p.Prompt[:len(p.Prompt):len(p.Prompt)], stopID: -1}
	s.m.Owner, s.m.Prompt, s.m.NoHits, s.m.Adapter = s, len(p.Prompt), p.NoHits, p.Space.Adapter
	return s
}

// Ready receives when there is something to Take.
func (s *Sequence) Ready() <-chan struct{} { return s.p.Ready }

// Take appends the tokens generated since the last call to dst. A Finish other than Running
// says that these were the last.
func (s *Sequence) Take(dst []uint32) ([]uint32, Finish) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dst = append(dst, s.out...)
	s.out = s.out[:0]
	return dst, s.finish
}

// StopID is the stop token that ended the sequence, or -1.
func (s *Sequence) StopID() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopID
}

// Cached is how many prompt tokens were found in the cache when it was first scheduled.
func (s *Sequence) Cached() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cached
}

// Times returns the moments so far.
func (s *Sequence) Times() Timings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.times
}

// admitted notes the first scheduling and its cache hit.
func (s *Sequence) admitted(cached int, now time.Time) {
	s.mu.Lock()
	s.cached, s.times.Scheduled = cached, now
	s.mu.Unlock()
}

// Feign writes the answer without an engine: the first token at once, and another one each time, until the answer or ctx ends.
func (s *Sequence) Feign(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	s.mu.Lock()
	s.times.Arrived, s.times.Scheduled = time.Now(), time.Now()
	s.mu.Unlock()
	for n := range s.p.MaxTokens {
		if n > 0 {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		token, why := s.p.Next(n), Running
		switch {
		case token == s.p.End && !s.p.IgnoreEnd && n+1 >= s.p.MinTokens:
			why = FinishStop
		case n+1 == s.p.MaxTokens:
			why = FinishLength
		}
		if s.deliver(token, true, why, -1, time.Now()); why != Running {
			return
		}
	}
}

// deliver hands a token and perhaps the end to the reader.
func (s *Sequence) deliver(token uint32, has bool, f Finish, stopID int64, now time.Time) {
	s.mu.Lock()
	if has {
		s.out = append(s.out, token)
	}
	if s.times.FirstToken.IsZero() {
		s.times.FirstToken = now
	}
	if f != Running {
		s.finish, s.stopID, s.times.Done = f, stopID, now
	}
	s.mu.Unlock()
	select {
	case s.p.Ready <- struct{}{}:
	default: // the reader has not yet looked
	}
}
