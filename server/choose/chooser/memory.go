package chooser

import (
	"strconv"
	"sync"
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
		key := req.Session
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
		if req.Session == "" {
			break
		}
		if slot, ok := c.sessions.get(sessionKey{ln, req.Session}); ok {
			if at := s.pool.at(slot); at >= 0 {
				d.Candidates[at].Session = true
			}
		}
	}
}

// remember notes for the policies that have a memory what was sent where.
func (c *Chooser) remember(d *decision.Decision, req *Request, ln *line, hashes []blockhash.Hash, now time.Time) {
	cand := d.Pick()
	if cand.Feed == kvblock.FeedNone && len(hashes) > 0 {
		c.params.Index.Routed(cand.Slot, hashes)
	}
	if d.Policy == decision.ConsistentHash {
		c.metrics.affinity.routed(req.Session, cand.Slot, int(cand.Place))
	}
	if req.Session != "" {
		c.sessions.put(sessionKey{ln, req.Session}, cand.Slot)
	}
	if req.Text != "" {
		if t := ln.tree.Load(); t != nil {
			t.Insert(cand.Slot, req.Text, now)
		}
	}
}

// sessions remembers the rank that served each session last. It is bounded: the older half is
// forgotten when it is full.
type sessions struct {
	mu    sync.Mutex
	young map[sessionKey]replica.Slot // guarded by mu
	old   map[sessionKey]replica.Slot // guarded by mu
}

type sessionKey struct {
	line    *line
	session string
}

// maxSessions bounds each of the two generations.
const maxSessions = 1 << 16

func newSessions() *sessions { return &sessions{young: map[sessionKey]replica.Slot{}} }

func (s *sessions) get(k sessionKey) (replica.Slot, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slot, ok := s.young[k]; ok {
		return slot, true
	}
	slot, ok := s.old[k]
	return slot, ok
}

func (s *sessions) put(k sessionKey, slot replica.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.young) >= maxSessions {
		s.old, s.young = s.young, map[sessionKey]replica.Slot{}
	}
	s.young[k] = slot
}

func (s *sessions) forget(slot replica.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range []map[sessionKey]replica.Slot{s.young, s.old} {
		for k, v := range m {
			if v == slot {
				delete(m, k)
			}
		}
	}
}
