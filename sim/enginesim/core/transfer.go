package core

import "time"

// Pin has the blocks of a prompt kept after its sequence has ended for its length, for another engine to read. The zero value has not.
type Pin struct {
	// Name is that under which the blocks are read.
	Name string
	// Lease is how long they are kept.
	Lease time.Duration
	// Print distinguishes the prompt from others.
	Print uint64
}

// pinned are the kept blocks of one prompt.
type pinned struct {
	blocks []int32
	ends   *time.Timer
	print  uint64
	number int // in the order in which they were kept
}

// pin keeps the blocks of s, which has ended; c.mu is held.
func (c *Core) pin(s *Sequence) {
	full := min(len(s.m.Keys), s.prompt/c.cfg.BlockSize)
	name := s.p.Pin.Name
	c.pinnings++
	p := &pinned{blocks: c.machine.Pin(s.m.Keys[:full]), print: s.p.Pin.Print, number: c.pinnings}
	p.ends = time.AfterFunc(s.p.Pin.Lease, func() {
		c.mu.Lock()
		if c.pins[name] == p {
			c.expired++
		}
		c.mu.Unlock()
		c.Unpin(name)
	})
	if c.pins == nil {
		c.pins = map[string]*pinned{}
	}
	c.pins[name] = p
}

// FindPin returns the name and the print of the prompt that was the first to be kept, of those whose names match; false when there is none.
func (c *Core) FindPin(match func(name string) bool) (name string, print uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := 0
	for n, p := range c.pins {
		if match(n) && (first == 0 || p.number < first) {
			name, print, first = n, p.print, p.number
		}
	}
	return name, print, first > 0
}

// Strand takes the blocks of the prompt of s, which was not submitted, out of use until the engine ends: NixlPushConnector of vLLM 0.33 keeps
// those of a request that is aborted while it waits for its cache.
func (c *Core) Strand(s *Sequence) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.machine.Strand((s.prompt + c.cfg.BlockSize - 1) / c.cfg.BlockSize)
}

// Unpin ends the keeping of blocks; false when none are kept under the name.
func (c *Core) Unpin(name string) bool {
	c.mu.Lock()
	p := c.pins[name]
	if p != nil {
		delete(c.pins, name)
		p.ends.Stop()
		c.machine.Unpin(p.blocks)
	}
	c.mu.Unlock()
	c.nudge()
	return p != nil
}

// Pins counts the prompts with blocks that are kept, and the prompts whose lease ended.
func (c *Core) Pins() (kept, expired int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pins), c.expired
}

// Holds is how many tokens of the prompt of s, which was not submitted yet, lie in the cache.
func (c *Core) Holds(s *Sequence) int {
	if !c.cfg.PrefixCaching {
		return 0
	}
	c.extendKeys(s)
	c.mu.Lock()
	defer c.mu.Unlock()
	return min(c.machine.Pool().Match(s.m.Keys)*c.cfg.BlockSize, s.prompt)
}

// Receive puts the prompt of s, which was not submitted yet, into the cache: its blocks were read from another engine.
func (c *Core) Receive(s *Sequence) {
	if !c.cfg.PrefixCaching {
		return
	}
	c.extendKeys(s)
	c.mu.Lock()
	c.machine.Receive(&s.m)
	c.mu.Unlock()
	c.nudge()
}

// dropPins ends the leases of an engine that stops.
func (c *Core) dropPins() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pins {
		p.ends.Stop()
	}
	c.pins = nil
}
