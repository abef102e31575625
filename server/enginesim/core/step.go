package core

import (
	"slices"
	"time"
)

// plan chooses the tokens of the next step and gives them blocks: first for the sequences that
// run, in order, then for those that wait. It returns the sequences of the step, appended to
// batch, and how long it takes.
func (c *Core) plan(batch []*Sequence) ([]*Sequence, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused {
		return batch, 0
	}
	t := c.cfg.Timing
	t.Speed = c.speed
	budget := c.cfg.MaxBatchedTokens
	var took time.Duration
	add := func(s *Sequence, n int) {
		s.planned = n
		c.remember(s)
		batch = append(batch, s)
		budget -= n
		if n == 1 && s.computed >= s.prompt {
			took += t.PerSequence + time.Duration(s.computed)*t.PerContextToken
		} else {
			took += t.prefill(n, s.computed)
		}
	}
	preempted := false
	for i := 0; i < len(c.running) && budget > 0; i++ {
		s := c.running[i]
		n := min(len(s.tokens)-s.computed, budget)
		for !c.grow(s, s.computed+n) {
			preempted = true
			if c.preempt() == s {
				n = 0
				break
			}
		}
		if n > 0 {
			add(s, n)
		}
	}
	for !preempted && budget > 0 && len(c.waiting) > 0 && len(c.running) < c.cfg.MaxSeqs {
		s := c.waiting[0]
		n, ok := c.admit(s, budget)
		if !ok {
			break
		}
		c.waiting = slices.Delete(c.waiting, 0, 1)
		c.running = append(c.running, s)
		add(s, n)
	}
	if len(batch) == 0 {
		return batch, 0
	}
	return batch, t.scale(t.Base + took)
}

// grow gives s blocks for total tokens; false when there are too few.
func (c *Core) grow(s *Sequence, total int) bool {
	need := c.blocksFor(total) - len(s.blocks)
	if need > c.pool.free {
		return false
	}
	for range need {
		s.blocks = append(s.blocks, c.pool.take())
	}
	return true
}

func (c *Core) blocksFor(tokens int) int {
	return (tokens + c.cfg.BlockSize - 1) / c.cfg.BlockSize
}

// preempt sends the youngest running sequence back to the queue's head and returns it.
func (c *Core) preempt() *Sequence {
	last := len(c.running) - 1
	s := c.running[last]
	c.running = c.running[:last]
	c.freeBlocks(s)
	c.waiting = slices.Insert(c.waiting, 0, s)
	c.counts.Preemptions++
	return s
}

// admit gives a waiting sequence its cached blocks and blocks for its first tokens.
func (c *Core) admit(s *Sequence, budget int) (n int, ok bool) {
	hits := c.prefix(s)
	cached := len(hits) * c.cfg.BlockSize
	n = min(len(s.tokens)-cached, budget)
	idle := 0 // hits that count as free until they are touched
	for _, b := range hits {
		if c.pool.blocks[b].refs == 0 {
			idle++
		}
	}
	if c.blocksFor(cached+n)-len(hits) > c.pool.free-idle {
		return 0, false
	}
	for _, b := range hits {
		c.pool.touch(b)
	}
	s.blocks, s.named, s.computed = hits, len(hits), cached
	c.grow(s, cached+n)
	if !s.started {
		s.started = true
		c.counts.Queries += uint64(len(s.tokens))
		c.counts.Hits += uint64(cached)
		s.admitted(cached, time.Now())
	}
	return n, true
}

// prefix finds the leading blocks of s in the cache. The last token is always computed anew.
func (c *Core) prefix(s *Sequence) []int32 {
	if !c.cfg.PrefixCaching || s.p.NoHits {
		return nil
	}
	var hits []int32
	for i := range (len(s.tokens) - 1) / c.cfg.BlockSize {
		b, ok := c.pool.lookup(c.digest(s, i))
		if !ok {
			break
		}
		hits = append(hits, b)
	}
	return hits
}

// digest is the name of block i of s, which must be full.
func (c *Core) digest(s *Sequence, i int) Digest {
	size := c.cfg.BlockSize
	for at := len(s.digests); at <= i; at++ {
		var parent Digest
		if at > 0 {
			parent = s.digests[at-1]
		}
		start, end := at*size, (at+1)*size
		s.digests = append(s.digests, digest(c.cfg.Seed, parent, s.tokens[start:end], s.p.Space.extra(start, end)))
	}
	return s.digests[i]
}

// remember caches and announces the blocks that the planned step fills.
func (c *Core) remember(s *Sequence) {
	if !c.cfg.PrefixCaching {
		return
	}
	full := min(s.computed+s.planned, len(s.tokens)) / c.cfg.BlockSize
	if full <= s.named {
		return
	}
	first := s.named
	ev := Event{Kind: Stored, BlockSize: c.cfg.BlockSize, Space: s.p.Space, First: first * c.cfg.BlockSize}
	if first > 0 {
		ev.Parent, ev.HasParent = c.digest(s, first-1), true
	}
	for ; s.named < full; s.named++ {
		d := c.digest(s, s.named)
		c.pool.name(s.blocks[s.named], d)
		ev.Hashes = append(ev.Hashes, d)
	}
	end := full * c.cfg.BlockSize
	ev.Tokens = s.tokens[ev.First:end:end]
	c.events = append(c.events, ev)
}

// complete ends the step: computed tokens count, and sequences that have no more to compute
// get their next token.
func (c *Core) complete(batch []*Sequence) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	ended := false
	for _, s := range batch {
		if !s.live || s.planned == 0 {
			continue // aborted or preempted meanwhile
		}
		if s.computed < s.prompt {
			c.counts.PromptTokens += uint64(min(s.computed+s.planned, s.prompt) - s.computed)
		}
		s.computed += s.planned
		s.planned = 0
		if s.computed < len(s.tokens) {
			continue
		}
		if c.sample(s, now) {
			ended = true
		}
	}
	if ended {
		c.running = slices.DeleteFunc(c.running, func(s *Sequence) bool { return !s.live })
	}
}

// sample gives s its next token and tells whether that ended it.
func (c *Core) sample(s *Sequence, now time.Time) (ended bool) {
	if s.p.Next == nil {
		c.end(s, FinishStop)
		s.deliver(0, false, FinishStop, -1, now)
		return true
	}
	made := len(s.tokens) - s.prompt
	token := s.p.Next(made)
	s.tokens = append(s.tokens, token)
	c.counts.GenerationTokens++
	made++
	why, stopID := Running, int64(-1)
	switch {
	case made < s.p.MinTokens:
	case token == s.p.End && !s.p.IgnoreEnd:
		why = FinishStop
	case slices.Contains(s.p.StopIDs, token):
		why, stopID = FinishStop, int64(token)
	}
	if why == Running && (made >= s.p.MaxTokens || len(s.tokens) >= c.cfg.MaxModelLen) {
		why = FinishLength
	}
	if why != Running {
		c.end(s, why)
	}
	s.deliver(token, true, why, stopID, now)
	return why != Running
}
