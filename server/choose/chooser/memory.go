package chooser

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// memory is the policies' memory of earlier requests: sessions, rings, trees of texts, and the prompts sent to ranks without events.
type memory struct {
	clock    *clock
	settings *current
	index    *kvindex.Index
	// ring and tree are of the settings that the chooser began with.
	ring     selector.RingConfig
	tree     selector.TreeConfig
	sessions *sessions
	affinity *affinity
	rings    atomic.Int64 // that were built
}

// trail is what the policies remember of the requests for one model. It is made for one cursor.
type trail struct {
	cursor atomic.Uint32 // of round-robin
	ring   atomic.Pointer[poolRing]
	tree   atomic.Pointer[selector.Tree]
}

// forget forgets the texts of a rank.
func (t *trail) forget(slot replica.Slot) {
	if tree := t.tree.Load(); tree != nil {
		tree.Remove(slot)
	}
}

// start sets the first turn of round-robin.
func (t *trail) start(turn uint32) { t.cursor.Store(turn) }

// poolRing is the ring of one state of the pool.
type poolRing struct {
	sum  uint64
	ring *selector.Ring
}

// ringOf returns the ring of the pool as it is.
func (m *memory) ringOf(of *trail, replicas []*replica.Replica) *selector.Ring {
	sum := uint64(14695981039346656037)
	for _, r := range replicas {
		for i := range len(r.ID) {
			sum = (sum ^ uint64(r.ID[i])) * 1099511628211
		}
		for _, s := range r.Slots {
			sum = (sum ^ uint64(s) ^ 1<<40) * 1099511628211
		}
	}
	if r := of.ring.Load(); r != nil && r.sum == sum {
		return r.ring
	}
	began := m.clock.now()
	r := &poolRing{sum: sum, ring: selector.NewRing(m.ring, replicas)}
	of.ring.Store(r)
	m.rings.Add(1)
	m.affinity.rebuilt(m.clock.now().Sub(began))
	return r.ring
}

// treeOf returns the trail's text tree, made at first use.
func (m *memory) treeOf(of *trail) *selector.Tree {
	if t := of.tree.Load(); t != nil {
		return t
	}
	of.tree.CompareAndSwap(nil, selector.NewTree(m.tree))
	return of.tree.Load()
}

// recall fills in the request's entries in the memories of policies. slots is memory that it may use, and returns.
func (m *memory) recall(d *decision.Decision, p *pool, req *Request, of *trail, slots []replica.Slot) []replica.Slot {
	switch d.Policy {
	case decision.RoundRobin:
		d.Cursor = of.cursor.Add(1) - 1
	case decision.ConsistentHash:
		key := req.sessionName()
		d.Keyless = key == ""
		if key == "" {
			key = req.ID + "/" + strconv.Itoa(req.Attempt)
		}
		slots = m.ringOf(of, req.Replicas).Walk(slots[:0], key)
		for place, slot := range slots {
			if at := p.at(slot); at >= 0 {
				d.Candidates[at].Place = uint32(place + 1)
			}
		}
	case decision.PrefixAffinity:
		if d.PromptChars = len(req.Text); d.PromptChars == 0 {
			break
		}
		tree := m.treeOf(of)
		tree.Match(req.Text, func(slot replica.Slot, chars int) {
			if at := p.at(slot); at >= 0 {
				d.Candidates[at].Chars = uint32(chars)
			}
		})
		for i := range d.Candidates {
			d.Candidates[i].Held = uint32(tree.Size(d.Candidates[i].Slot))
		}
	default:
		m.recallSession(d, p, req, of)
	}
	return slots
}

// remember notes the request and its rank in the memories of policies.
func (m *memory) remember(d *decision.Decision, req *Request, of *trail, hashes []blockhash.Hash, now time.Time) {
	cand := d.Pick()
	if cand.Feed == kvblock.FeedNone && len(hashes) > 0 {
		m.index.Routed(cand.Slot, hashes)
	}
	if d.Policy == decision.ConsistentHash {
		m.affinity.routed(req.sessionName(), cand.Slot, int(cand.Place))
	}
	m.rememberSession(req, of, cand.Slot, now)
	if req.Text != "" {
		if t := of.tree.Load(); t != nil {
			t.Insert(cand.Slot, req.Text, now)
		}
	}
}
