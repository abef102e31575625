package core

import "time"

// Pin has the blocks of a prompt kept after its sequence has ended for its length, for another engine to read. The zero value has not.
type Pin struct {
	// Name is that under which the blocks are read.
	Name string
	// Lease is how long they are kept.
	Lease time.Duration
}

// pinned are the kept blocks of one prompt.
type pinned struct {
	blocks []int32
	ends   *time.Timer
}

// pin keeps the blocks of s, which has ended; c.mu is held.
func (c *Core) pin(s *Sequence) {
	full := min(len(s.m.Keys), s.prompt/c.cfg.BlockSize)
	name := s.p.Pin.Name
	p := &pinned{blocks: c.machine.Pin(s.m.Keys[:full])}
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

// HasPin reports whether blocks are kept under the name.
func (c *Core) HasPin(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pins[name] != nil
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
