package core

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Core is one rank of a simulated engine.
type Core struct {
	cfg  Config
	emit func([]Event)
	wake chan struct{}

	mu      sync.Mutex
	pool    *pool       // guarded by mu
	waiting []*Sequence // guarded by mu
	running []*Sequence // guarded by mu
	events  []Event     // guarded by mu: not yet published
	paused  bool        // guarded by mu
	frozen  Stats       // guarded by mu: what a paused core told last
	stopped bool        // guarded by mu: Run has ended
	speed   float64     // guarded by mu
	counts  Counts      // guarded by mu
}

// Counts are the sums since the start.
type Counts struct {
	// PromptTokens and GenerationTokens were computed and made; Queries and Hits count prompt
	// tokens asked from and found in the prefix cache.
	PromptTokens, GenerationTokens, Queries, Hits, Preemptions uint64
	// Finished counts ended sequences by reason.
	Finished [FinishAbort + 1]uint64
}

// Stats are a rank's present load and its counts.
type Stats struct {
	Running, Waiting int
	// Usage is the share of blocks in use, 0 to 1.
	Usage float64
	Counts
}

// New returns a core that works once Run is called. emit is called from Run with each step's
// events, in order.
func New(cfg Config, emit func([]Event)) *Core {
	c := &Core{cfg: cfg, emit: emit, wake: make(chan struct{}, 1), speed: cfg.Timing.Speed}
	c.pool = newPool(cfg.Blocks-1, func(d Digest) {
		c.events = append(c.events, Event{Kind: Removed, Hashes: []Digest{d}})
	})
	return c
}

// Submit queues s. After Run has ended it aborts s at once.
func (c *Core) Submit(s *Sequence) {
	s.mu.Lock()
	s.times.Arrived = time.Now()
	s.mu.Unlock()
	c.mu.Lock()
	s.live = true
	c.waiting = append(c.waiting, s)
	stopped := c.stopped
	c.mu.Unlock()
	if stopped {
		c.Abort(s, FinishAbort)
	}
	c.nudge()
}

// Abort ends s, counted under why, and frees its blocks. It does nothing to one that has ended.
func (c *Core) Abort(s *Sequence, why Finish) {
	c.mu.Lock()
	if !s.live {
		c.mu.Unlock()
		return
	}
	if i := slices.Index(c.running, s); i >= 0 {
		c.running = slices.Delete(c.running, i, i+1)
	} else if i := slices.Index(c.waiting, s); i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
	}
	c.end(s, why)
	c.mu.Unlock()
	s.deliver(0, false, why, -1, time.Now())
	c.nudge()
}

// Pause stops and resumes the scheduling of steps: an engine that hangs.
func (c *Core) Pause(on bool) {
	c.mu.Lock()
	if on && !c.paused {
		c.frozen = c.stats()
	}
	c.paused = on
	c.mu.Unlock()
	c.nudge()
}

// SetSpeed changes the speed-up of all later steps.
func (c *Core) SetSpeed(speed float64) {
	c.mu.Lock()
	c.speed = speed
	c.mu.Unlock()
}

// Reset empties the prefix cache. It refuses while a request holds blocks, as vLLM does.
func (c *Core) Reset() bool {
	c.mu.Lock()
	ok := c.pool.clear()
	if ok {
		c.events = append(c.events, Event{Kind: Cleared})
	}
	c.mu.Unlock()
	c.nudge()
	return ok
}

// Told is what the engine's metrics tell: they come with its steps, so those of one that hangs stand still.
func (c *Core) Told() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused {
		return c.frozen
	}
	return c.stats()
}

// Stats tells the present load.
func (c *Core) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats()
}

// stats needs c.mu.
func (c *Core) stats() Stats {
	n := len(c.pool.blocks)
	return Stats{Running: len(c.running), Waiting: len(c.waiting), Usage: 1 - float64(c.pool.free)/float64(n), Counts: c.counts}
}

// Run computes steps until ctx ends, then aborts what is left.
func (c *Core) Run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	var due time.Time // when the step before was to end, so that late wake-ups do not add up
	var batch []*Sequence
	for {
		var took time.Duration
		batch, took = c.plan(batch[:0])
		if c.cfg.EarlyEvents || len(batch) == 0 {
			c.publish()
		}
		if len(batch) == 0 {
			due = time.Time{}
			select {
			case <-c.wake:
				continue
			case <-ctx.Done():
				c.abortAll()
				return
			}
		}
		now := time.Now()
		if now.Sub(due) > maxLag {
			due = now
		}
		due = due.Add(took)
		if wait := due.Sub(now); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				c.abortAll()
				return
			}
		}
		c.publish() // before the answers, as vLLM does
		c.complete(batch)
	}
}

// maxLag is how much lost time the next steps may make up for.
const maxLag = 20 * time.Millisecond

func (c *Core) nudge() {
	select {
	case c.wake <- struct{}{}:
	default: // Run has not yet seen the one before
	}
}

// publish hands the pending events out.
func (c *Core) publish() {
	c.mu.Lock()
	events := c.events
	c.events = nil
	c.mu.Unlock()
	if len(events) > 0 {
		c.emit(events)
	}
}

// abortAll ends everything: the engine stops.
func (c *Core) abortAll() {
	c.mu.Lock()
	c.stopped = true
	left := slices.Concat(c.running, c.waiting)
	c.mu.Unlock()
	for _, s := range left {
		c.Abort(s, FinishAbort)
	}
}

// end takes a sequence that is in no queue any more out of the engine. The caller holds c.mu.
func (c *Core) end(s *Sequence, why Finish) {
	s.live = false
	c.counts.Finished[why]++
	c.freeBlocks(s)
}

// freeBlocks gives the blocks back, last ones first, so that prefixes live longer.
func (c *Core) freeBlocks(s *Sequence) {
	for _, b := range slices.Backward(s.blocks) {
		c.pool.release(b)
	}
	s.blocks, s.named, s.computed, s.planned = nil, 0, 0, 0
}
