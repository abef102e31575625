package layout

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Pool is a request's list of replicas, laid out by rank. It is valid as long as requests come with the same
// replicas, which never change. All of it but rules is immutable.
type Pool struct {
	Replicas []*replica.Replica
	Ranks    []Rank
	Names    []replica.ID // of each rank's replica
	bySlot   []int32      // index in ranks, -1 for none
	Mute     bool         // a replica answers no probes
	Pairs    *pairs       // nil when none can prefill for another one
	rules    atomic.Pointer[Rules]
}

// Rules has Filter's verdict on each replica by its state and the model alone, and the model's context there.
type Rules struct {
	model    string
	mute     bool
	vetoes   []decision.Veto
	contexts []int
}

// Cache has the layout of a model's last request.
type Cache struct{ last atomic.Pointer[Pool] }

// Of returns the layout of replicas, which is made again when they differ from the replicas of the last request.
func (k *Cache) Of(replicas []*replica.Replica, lanes *transfer.Lanes) *Pool {
	if p := k.last.Load(); p != nil && slices.Equal(p.Replicas, replicas) {
		return p
	}
	p := newPool(slices.Clone(replicas))
	p.Pairs = newPairs(p.Replicas, p.Ranks, lanes)
	k.last.Store(p)
	return p
}

// Size is the number of replicas of the last request.
func (k *Cache) Size() int {
	if p := k.last.Load(); p != nil {
		return len(p.Replicas)
	}
	return 0
}

// Home names the pool: models of one pool, as an alias and an adapter are, have the same. It is the first rank; NoSlot before a request.
func (k *Cache) Home() replica.Slot {
	home := replica.NoSlot
	if p := k.last.Load(); p != nil {
		for i := range p.Ranks {
			if slot := p.Ranks[i].Slot; home == replica.NoSlot || slot < home {
				home = slot
			}
		}
	}
	return home
}

func newPool(replicas []*replica.Replica) *Pool {
	p := &Pool{Replicas: replicas}
	for i, r := range replicas {
		p.Mute = p.Mute || r.Mute
		listed := 0
		for _, m := range r.Models {
			if m.Parent != "" {
				listed++
			}
		}
		for index, slot := range r.Slots {
			for int(slot) >= len(p.bySlot) {
				p.bySlot = append(p.bySlot, -1)
			}
			p.bySlot[slot] = int32(len(p.Ranks))
			p.Names = append(p.Names, r.ID)
			p.Ranks = append(p.Ranks, newRank(r, i, index, listed))
		}
	}
	return p
}

// At returns the index of a slot in the pool's ranks, -1 for none.
func (p *Pool) At(slot replica.Slot) int {
	if int(slot) >= len(p.bySlot) {
		return -1
	}
	return int(p.bySlot[slot])
}

// RulesFor returns f's verdicts on the replicas by their state and the model alone.
func (p *Pool) RulesFor(f *selector.Filter) *Rules {
	if r := p.rules.Load(); r != nil && r.model == f.Model && r.mute == f.Mute {
		return r
	}
	plain := selector.Filter{Model: f.Model, Mute: f.Mute}
	r := &Rules{model: f.Model, mute: f.Mute, vetoes: make([]decision.Veto, len(p.Replicas)), contexts: make([]int, len(p.Replicas))}
	for i, one := range p.Replicas {
		r.vetoes[i], r.contexts[i] = plain.Replica(one), ContextOf(one, f.Model)
	}
	p.rules.Store(r)
	return r
}

// Veto is f.Replica of a replica of the pool.
func (p *Pool) Veto(f *selector.Filter, rules *Rules, owner int) decision.Veto {
	if rules == nil {
		return f.Replica(p.Replicas[owner])
	}
	if v := rules.vetoes[owner]; v != decision.VetoNone {
		return v
	}
	if longest := rules.contexts[owner]; longest > 0 && f.PromptTokens > longest {
		return decision.VetoContext
	}
	return decision.VetoNone
}

// ContextOf is the context of a model at a replica in tokens; 0 when it is not known.
func ContextOf(r *replica.Replica, model string) int {
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
