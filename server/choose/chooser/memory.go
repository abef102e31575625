package chooser

import (
	"strconv"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// ringOf is the ring of one state of the pool.
type ringOf struct {
	sum  uint64
	ring *selector.Ring
}

// ringFor returns the ring of the pool as it is.
func (c *Chooser) ringFor(ln *line, replicas []*replica.Replica) *selector.Ring {
	sum := uint64(14695981039346656037)
	for _, r := range replicas {
		for i := range len(r.ID) {
			sum = (sum ^ uint64(r.ID[i])) * 1099511628211
		}
		for _, s := range r.Slots {
			sum = (sum ^ uint64(s) ^ 1<<40) * 1099511628211
		}
	}
	if r := ln.ring.Load(); r != nil && r.sum == sum {
		return r.ring
	}
	began := c.clock()
	r := &ringOf{sum: sum, ring: selector.NewRing(c.ring, replicas)}
	ln.ring.Store(r)
	c.metrics.rings.Add(1)
	c.metrics.affinity.rebuilt(c.clock().Sub(began))
	return r.ring
}

// treeFor returns the line's text tree, made at first use.
func (c *Chooser) treeFor(ln *line) *selector.Tree {
	if t := ln.tree.Load(); t != nil {
		return t
	}
	ln.tree.CompareAndSwap(nil, selector.NewTree(c.tree))
	return ln.tree.Load()
}

// recall fills in what the policies that have a memory remember of the request.
func (c *Chooser) recall(s *scratch, req *Request, ln *line) {
	d := &s.d
	switch d.Policy {
	case decision.RoundRobin:
		d.Cursor = ln.cursor.Add(1) - 1
	case decision.ConsistentHash:
		key := req.sessionName()
		d.Keyless = key == ""
		if key == "" {
			key = req.ID + "/" + strconv.Itoa(req.Attempt)
		}
		s.slots = c.ringFor(ln, req.Replicas).Walk(s.slots[:0], key)
		for place, slot := range s.slots {
			if at := s.pool.at(slot); at >= 0 {
				d.Candidates[at].Place = uint32(place + 1)
			}
		}
	case decision.PrefixAffinity:
		if d.PromptChars = len(req.Text); d.PromptChars == 0 {
			break
		}
		tree := c.treeFor(ln)
		tree.Match(req.Text, func(slot replica.Slot, chars int) {
			if at := s.pool.at(slot); at >= 0 {
				d.Candidates[at].Chars = uint32(chars)
			}
		})
		for i := range d.Candidates {
			d.Candidates[i].Held = uint32(tree.Size(d.Candidates[i].Slot))
		}
	default:
		c.recallSession(s, req, ln)
	}
}

// remember notes for the policies that have a memory what was sent where.
func (c *Chooser) remember(d *decision.Decision, req *Request, ln *line, hashes []blockhash.Hash, now time.Time) {
	cand := d.Pick()
	if cand.Feed == kvblock.FeedNone && len(hashes) > 0 {
		c.params.Index.Routed(cand.Slot, hashes)
	}
	if d.Policy == decision.ConsistentHash {
		c.metrics.affinity.routed(req.sessionName(), cand.Slot, int(cand.Place))
	}
	c.rememberSession(req, ln, cand.Slot, now)
	if req.Text != "" {
		if t := ln.tree.Load(); t != nil {
			t.Insert(cand.Slot, req.Text, now)
		}
	}
}
