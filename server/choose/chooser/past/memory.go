package past

import (
	"math"
	"strconv"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/layout"
	"github.com/kvpilot/kvpilot/server/choose/chooser/settings"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// Memory is the policies' memory of earlier requests: sessions, rings, trees of texts, and the prompts sent to ranks without events.
type Memory struct {
	Clock    *clock.Clock
	Settings *settings.Current
	Index    *kvindex.Index
	// Ring and tree are of the settings that the chooser began with.
	Ring     selector.RingConfig
	Tree     selector.TreeConfig
	Sessions *Sessions
	Affinity *Affinity
	// Rings counts the built rings.
	Rings instruments.Total `metric:"kvpilot.chooser.ring_rebuilds" unit:"{request}" help:"Consistent-hash rings built because the pool changed."`
}

// ringOf returns the ring of the pool as it is.
func (m *Memory) ringOf(of *Trail, replicas []*replica.Replica) *selector.Ring {
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
	began := m.Clock.Now()
	r := &poolRing{sum: sum, ring: selector.NewRing(m.Ring, replicas)}
	of.ring.Store(r)
	m.Rings.Add(1)
	m.Affinity.rebuilt(m.Clock.Now().Sub(began))
	return r.ring
}

// treeOf returns the trail's text tree, made at first use.
func (m *Memory) treeOf(of *Trail) *selector.Tree {
	if t := of.tree.Load(); t != nil {
		return t
	}
	of.tree.CompareAndSwap(nil, selector.NewTree(m.Tree))
	return of.tree.Load()
}

// Recall fills in the request's entries in the memories of policies. slots is memory that it may use, and returns.
func (m *Memory) Recall(d *decision.Decision, p *layout.Pool, req *ask.Request, of *Trail, slots []replica.Slot) []replica.Slot {
	switch d.Policy {
	case decision.RoundRobin:
		d.Cursor = of.cursor.Add(1) - 1
	case decision.ConsistentHash:
		key := req.SessionName()
		d.Keyless = key == ""
		if key == "" {
			key = req.ID + "/" + strconv.Itoa(req.Attempt)
		}
		slots = m.ringOf(of, req.Replicas).Walk(slots[:0], key)
		for place, slot := range slots {
			if at := p.At(slot); at >= 0 {
				d.Candidates[at].Place = uint32(place + 1)
			}
		}
	case decision.PrefixAffinity:
		if d.PromptChars = len(req.Text); d.PromptChars == 0 {
			break
		}
		tree := m.treeOf(of)
		tree.Match(req.Text, func(slot replica.Slot, chars int) {
			if at := p.At(slot); at >= 0 {
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

// Remember notes the request and its rank in the memories of policies.
func (m *Memory) Remember(d *decision.Decision, req *ask.Request, of *Trail, hashes []blockhash.Hash, now time.Time) {
	cand := d.Pick()
	if cand.Feed == kvblock.FeedNone && len(hashes) > 0 {
		m.Index.Routed(cand.Slot, hashes)
	}
	if d.Policy == decision.ConsistentHash {
		m.Affinity.routed(req.SessionName(), cand.Slot, int(cand.Place))
	}
	m.rememberSession(req, of, cand.Slot, now)
	if req.Text != "" {
		if t := of.tree.Load(); t != nil {
			t.Insert(cand.Slot, req.Text, now)
		}
	}
}

// recallSession marks the rank that the session was last served by.
func (m *Memory) recallSession(d *decision.Decision, p *layout.Pool, req *ask.Request, of *Trail) {
	if req.Session == "" {
		return
	}
	if v, ok := m.Sessions.get(m.Sessions.key(of, req.Tenant, req.Session), m.Clock.Since(d.At)); ok {
		if at := p.At(v.slot); at >= 0 {
			d.Candidates[at].Session = true
		}
	}
}

// rememberSession notes where the session was sent, until it should have come back.
func (m *Memory) rememberSession(req *ask.Request, of *Trail, slot replica.Slot, now time.Time) {
	if req.Session == "" {
		return
	}
	k := m.Sessions.key(of, req.Tenant, req.Session)
	if req.Attempt == 0 { // a retry is the same turn
		v, ok := m.Sessions.get(k, m.Clock.Since(now))
		m.Sessions.turns.add(ok, v.slot == slot)
	}
	if req.SessionReturn < 0 {
		m.Sessions.end(k)
		return
	}
	until := int64(math.MaxInt64)
	if ttl := m.Settings.Or(req.Settings).Config.SessionTTL; ttl > 0 {
		until = m.Clock.Since(now) + int64(ttl) + int64(req.SessionReturn)
	}
	m.Sessions.put(k, visit{slot: slot, until: until})
}
