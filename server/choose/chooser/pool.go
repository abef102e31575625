package chooser

import (
	"slices"
	"sync/atomic"

	"time"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// pool is a request's list of replicas, laid out by rank. It is valid as long as requests come with the same
// replicas, which never change. All of it but rules is immutable.
type pool struct {
	replicas []*replica.Replica
	ranks    []poolRank
	names    []replica.ID // of each rank's replica
	bySlot   []int32      // index in ranks, -1 for none
	mute     bool         // a replica answers no probes
	pairs    *pairs       // nil when none can prefill for another one
	rules    atomic.Pointer[poolRules]
}

// poolRules has Filter's verdict on each replica by its state and the model alone, and the model's context there.
type poolRules struct {
	model    string
	mute     bool
	vetoes   []decision.Veto
	contexts []int
}

// pools has the layout of a model's last request.
type pools struct{ last atomic.Pointer[pool] }

// of returns the layout of replicas, which is made again when they differ from the replicas of the last request.
func (k *pools) of(replicas []*replica.Replica, lanes *transfer.Lanes) *pool {
	if p := k.last.Load(); p != nil && slices.Equal(p.replicas, replicas) {
		return p
	}
	p := newPool(slices.Clone(replicas))
	p.pairs = newPairs(p.replicas, p.ranks, lanes)
	k.last.Store(p)
	return p
}

// size is the number of replicas of the last request.
func (k *pools) size() int {
	if p := k.last.Load(); p != nil {
		return len(p.replicas)
	}
	return 0
}

func newPool(replicas []*replica.Replica) *pool {
	p := &pool{replicas: replicas}
	for i, r := range replicas {
		p.mute = p.mute || r.Mute
		for index, slot := range r.Slots {
			for int(slot) >= len(p.bySlot) {
				p.bySlot = append(p.bySlot, -1)
			}
			p.bySlot[slot] = int32(len(p.ranks))
			p.names = append(p.names, r.ID)
			p.ranks = append(p.ranks, poolRank{
				replica: r.ID, slot: slot, owner: int32(i), index: uint16(index), blocks: uint32(max(0, r.Blocks)), budget: budget(r),
			})
		}
	}
	return p
}

// at returns the index of a slot in the pool's ranks, -1 for none.
func (p *pool) at(slot replica.Slot) int {
	if int(slot) >= len(p.bySlot) {
		return -1
	}
	return int(p.bySlot[slot])
}

// rulesFor returns f's verdicts on the replicas by their state and the model alone.
func (p *pool) rulesFor(f *selector.Filter) *poolRules {
	if r := p.rules.Load(); r != nil && r.model == f.Model && r.mute == f.Mute {
		return r
	}
	plain := selector.Filter{Model: f.Model, Mute: f.Mute}
	r := &poolRules{model: f.Model, mute: f.Mute, vetoes: make([]decision.Veto, len(p.replicas)), contexts: make([]int, len(p.replicas))}
	for i, one := range p.replicas {
		r.vetoes[i], r.contexts[i] = plain.Replica(one), contextOf(one, f.Model)
	}
	p.rules.Store(r)
	return r
}

// veto is f.Replica of a replica of the pool.
func (p *pool) veto(f *selector.Filter, rules *poolRules, owner int) decision.Veto {
	if rules == nil {
		return f.Replica(p.replicas[owner])
	}
	if v := rules.vetoes[owner]; v != decision.VetoNone {
		return v
	}
	if longest := rules.contexts[owner]; longest > 0 && f.PromptTokens > longest {
		return decision.VetoContext
	}
	return decision.VetoNone
}

func contextOf(r *replica.Replica, model string) int {
	m, _ := r.Serves(model)
	return selector.Context(r, m)
}

// panicFor is how long replicas that do not answer are still used, when they are most of a pool.
const panicFor = time.Minute

// MostMute reports whether most of a pool's replicas became unhealthy lately only because their probes got no
// answer. Then this machine or its network is more likely at fault than all of them, so they stay in use for a while.
func MostMute(replicas []*replica.Replica, now time.Time) bool {
	mute, others := 0, 0
	for _, r := range replicas {
		switch {
		case r.Mute && r.State == replica.StateUnhealthy && now.Sub(r.Since) < panicFor:
			mute++
		case r.State == replica.StateReady, r.State == replica.StateUnhealthy:
			others++
		}
	}
	return mute > others
}
