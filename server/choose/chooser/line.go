package chooser

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// line is what the chooser keeps per model: the memory of policies that need some, and its part of the hold queue.
type line struct {
	model  string
	cursor atomic.Uint32
	ring   atomic.Pointer[ringOf]
	tree   atomic.Pointer[selector.Tree]
	hold   *holdqueue.Line

	pumping sync.Mutex               // held by the one who visits the waiting
	again   atomic.Bool              // somebody wanted a visit meanwhile
	wakeAt  atomic.Int64             // when the next visit may find room, on the chooser's scale; 0: never
	planned map[replica.Slot]float64 // of the visit under way; guarded by pumping
	// visited is when the last visit was, on the chooser's scale; wanted the ranks that those who
	// then stayed wait for; that map is never written again.
	visited atomic.Int64
	wanted  atomic.Pointer[map[replica.Slot]float64]
}

// ringOf is the ring of one state of the pool.
type ringOf struct {
	sum  uint64
	ring *selector.Ring
}

// ReadsCache reports whether a request of the model, with these options, will be decided by what
// replicas hold of its prompt, be it by the serving policy or by the shadow beside it.
func (c *Chooser) ReadsCache(s *Settings, model string, o *Options) bool {
	t := s.of(model)
	serving := t.policy
	if o.Policy != "" {
		serving = o.Policy
	}
	return serving.ReadsCache() || t.shadow.ReadsCache()
}

// ReadsText reports whether the request will be decided by its prompt's text.
func (c *Chooser) ReadsText(s *Settings, model string, o *Options) bool {
	if o.Policy != "" {
		return o.Policy == decision.PrefixAffinity
	}
	return s.of(model).policy == decision.PrefixAffinity
}

// lineFor returns the line of a model, made at first use.
func (c *Chooser) lineFor(model string) *line {
	if ln, ok := c.lines.Load(model); ok {
		return ln.(*line)
	}
	c.linesMu.Lock()
	defer c.linesMu.Unlock()
	if ln, ok := c.lines.Load(model); ok {
		return ln.(*line)
	}
	ln := &line{model: model, hold: c.queue.NewLine(), planned: map[replica.Slot]float64{}}
	ln.cursor.Store(rand.New(rand.NewPCG(c.seed.Load(), uint64(len(model)))).Uint32() >> 1)
	c.lines.Store(model, ln)
	list := append(append([]*line(nil), *c.lineList.Load()...), ln)
	c.lineList.Store(&list)
	return ln
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

func duration(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
