package core

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

// Core is one rank of a simulated engine.
type Core struct {
	cfg  Config
	emit func([]Event)
	wake chan struct{}

	mu       sync.Mutex
	machine  *enginemodel.Machine    // guarded by mu
	events   []Event                 // guarded by mu: not yet published
	paused   bool                    // guarded by mu
	stopped  bool                    // guarded by mu: Run has ended
	finished [FinishAbort + 1]uint64 // guarded by mu
	clock    Clock                   // guarded by mu
	frozen   Stats                   // guarded by mu: the last report of a paused core
	pins     map[string]*pinned      // guarded by mu
	expired  int                     // guarded by mu: pins whose lease ended
	pinnings int                     // guarded by mu: pins that there have been
	loads    loads                   // guarded by mu
}

// Stats are a rank's present load and its counts.
type Stats struct {
	Running, Waiting int
	// Usage is the share of blocks in use, 0 to 1.
	Usage float64
	Clock Clock
	enginemodel.Counts
	// Finished counts ended sequences by reason.
	Finished [FinishAbort + 1]uint64
	// RunningAdapters and WaitingAdapters are the LoRA adapters of the sequences.
	RunningAdapters, WaitingAdapters []string
	// Kept counts the blocks that were put into host memory.
	Kept uint64
}

// New returns a core that works once Run is called. emit is called from Run with each step's
// events, in order.
func New(cfg Config, emit func([]Event)) *Core {
	c := &Core{cfg: cfg, emit: emit, wake: make(chan struct{}, 1)}
	c.machine = enginemodel.New(cfg.model(), nil, (*recorder)(c))
	addTiers(c)
	return c
}

// Submit queues s. After Run has ended it aborts s at once.
func (c *Core) Submit(s *Sequence) {
	s.mu.Lock()
	s.times.Arrived = time.Now()
	s.mu.Unlock()
	if c.cfg.PrefixCaching {
		c.extendKeys(s)
	}
	s.m.Most = 0
	if s.p.Next != nil {
		s.m.Most = max(1, min(s.p.MaxTokens, c.cfg.MaxModelLen-s.prompt))
	}
	c.mu.Lock()
	c.machine.Submit(&s.m)
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
	ok := c.machine.Abort(&s.m)
	c.loads.drop(&s.m)
	if ok {
		c.finished[why]++
	}
	c.mu.Unlock()
	if ok {
		s.deliver(0, false, why, -1, time.Now())
		c.nudge()
	}
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

// AbortAll ends all requests of an engine.
func AbortAll(c *Core) {
	c.mu.Lock()
	left := slices.Concat(c.machine.Running(), c.machine.Waiting(), c.loads.dropAll())
	c.mu.Unlock()
	for _, m := range left {
		c.Abort(owner(m), FinishAbort)
	}
}

// LoadAdapter brings a LoRA adapter into memory.
func LoadAdapter(c *Core, adapter string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	enginemodel.LoadAdapter(c.machine, adapter)
}

// UnloadAdapter forgets a LoRA adapter.
func UnloadAdapter(c *Core, adapter string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	enginemodel.UnloadAdapter(c.machine, adapter)
}

// SetSpeed changes the speed-up of all later steps.
func (c *Core) SetSpeed(speed float64) {
	c.mu.Lock()
	c.machine.SetSpeed(speed)
	c.mu.Unlock()
}

// Reset empties the prefix cache. It refuses while a request holds blocks, as vLLM does.
func (c *Core) Reset() bool {
	c.mu.Lock()
	ok := c.machine.Reset()
	if ok {
		c.events = append(c.events, Event{Kind: Cleared})
	}
	c.mu.Unlock()
	c.nudge()
	return ok
}

// Reported returns the figures of the engine's metrics: they change with its steps, so the metrics of a hung engine do not.
func (c *Core) Reported() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused {
		return c.frozen
	}
	return c.stats()
}

// Stats returns the present load.
func (c *Core) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats()
}

// stats needs c.mu.
func (c *Core) stats() Stats {
	p := c.machine.Pool()
	return Stats{
		RunningAdapters: enginemodel.AdaptersOf(c.machine.Running()), WaitingAdapters: enginemodel.AdaptersOf(c.machine.Waiting()),
		Running: len(c.machine.Running()), Waiting: len(c.machine.Waiting()) + len(c.loads.running), Usage: 1 - float64(p.Free())/float64(p.Size()),
		Counts: c.machine.Counts(), Clock: c.clock, Finished: c.finished, Kept: c.loads.kept,
	}
}

// Run computes steps until ctx ends, then aborts the rest.
func (c *Core) Run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	var due time.Time // when the step before was to end, so that late wake-ups do not add up
	for {
		took, busy := c.plan()
		if c.cfg.EarlyEvents || !busy {
			c.publish()
		}
		if !busy {
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
		if lag := now.Sub(due); lag > maxLag {
			if !due.IsZero() {
				c.slipped(lag)
			}
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
		c.stepped(took, due, time.Now())
		c.publish() // before the answers, as vLLM does
		c.complete()
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

// plan schedules the next step and says how long it takes; false when there is nothing to compute.
func (c *Core) plan() (took time.Duration, busy bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused {
		return 0, false
	}
	step := c.machine.Plan(1)
	beginLoads(c, step.Loads)
	if step.Steps == 0 {
		return 0, false
	}
	now := time.Now()
	for _, m := range slices.Backward(c.machine.Running()) {
		s := owner(m)
		if s.scheduled {
			break // those before it are older
		}
		s.scheduled = true
		s.admitted(m.Cached(), now)
	}
	return time.Duration(math.Round(step.Seconds(1) * float64(time.Second))), true
}

// complete ends the step and delivers its tokens.
func (c *Core) complete() {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.machine.Complete(1) {
		c.sample(owner(m), now)
	}
}

// sample gives s its next token. The machine has ended it when that is the last one for its length.
func (c *Core) sample(s *Sequence, now time.Time) {
	if s.p.Next == nil {
		c.finished[FinishStop]++
		s.deliver(0, false, FinishStop, -1, now)
		return
	}
	made := s.m.Made()
	token := s.p.Next(made - 1)
	s.tokens = append(s.tokens, token)
	why, stopID := Running, int64(-1)
	switch {
	case made < s.p.MinTokens:
	case token == s.p.End && !s.p.IgnoreEnd:
		why = FinishStop
	case slices.Contains(s.p.StopIDs, token):
		why, stopID = FinishStop, int64(token)
	}
	if why == Running && !s.m.Live() {
		why = FinishLength
	}
	if why != Running {
		c.machine.Abort(&s.m) // nothing when it reached its length
		c.finished[why]++
		if why == FinishLength && s.p.Pin.Name != "" {
			c.pin(s) // before any other sequence can take the blocks
		}
	} else if c.cfg.PrefixCaching {
		c.extendKeys(s)
	}
	s.deliver(token, true, why, stopID, now)
}

// extendKeys names the blocks of s that are full.
func (c *Core) extendKeys(s *Sequence) {
	size := c.cfg.BlockSize
	for at := len(s.m.Keys); (at+1)*size <= len(s.tokens); at++ {
		var parent blockhash.Hash
		if at > 0 {
			parent = s.m.Keys[at-1]
		}
		start, end := at*size, (at+1)*size
		s.m.Keys = append(s.m.Keys, keyOf(c.cfg.Seed, parent, s.tokens[start:end], s.p.Space.extra(start, end)))
	}
}

// publish delivers the pending events.
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
	enginemodel.LeaveTiers(c.machine)
	c.mu.Unlock()
	AbortAll(c)
	c.dropPins()
}

func owner(m *enginemodel.Sequence) *Sequence { return m.Owner.(*Sequence) }

// recorder is the core as the machine's sink; the caller of the machine holds Core.mu.
type recorder Core

// Stored implements enginemodel.Sink.
func (r *recorder) Stored(m *enginemodel.Sequence, from, to int) {
	r.events = append(r.events, r.describe(m, from, to))
}

// describe is the event of stored blocks with all that it says.
func (r *recorder) describe(m *enginemodel.Sequence, from, to int) Event {
	s, size := owner(m), r.cfg.BlockSize
	ev := Event{Kind: Stored, BlockSize: size, Space: s.p.Space, First: from * size, Tokens: s.tokens[from*size : to*size : to*size]}
	if from > 0 {
		ev.Parent, ev.HasParent = digestOf(m.Keys[from-1]), true
	}
	for _, k := range m.Keys[from:to] {
		ev.Hashes = append(ev.Hashes, digestOf(k))
	}
	return ev
}

// Removed implements enginemodel.Sink.
func (r *recorder) Removed(key blockhash.Hash) {
	r.events = append(r.events, Event{Kind: Removed, Hashes: []Digest{digestOf(key)}})
}
