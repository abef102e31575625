package speed

import (
	"slices"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// kind is a set of ranks that are expected to be equally fast: the same model on the same hardware.
type kind struct {
	key kindKey // of the Kinds that made it

	mu     sync.Mutex
	ranks  []*Rank // guarded by mu
	joined uint64  // ranks so far; guarded by mu
	turns  turns   // in which ranks that know little follow; guarded by mu
	// known are the ranks with a Model that counts, early ranks with one of fewer samples; guarded by mu
	known, early order
}

const (
	// experienced is the number of samples from which a rank's Model counts for its kind.
	experienced = 4
	// defaultBudget is the tokens per step when the engine does not report them.
	defaultBudget = 2048
)

// newRank adds a rank to the kind.
func (k *kind) newRank() *Rank {
	r := &Rank{kind: k, account: account{budget: defaultBudget}}
	k.add(r)
	r.mu.Lock()
	r.update()
	r.mu.Unlock()
	return r
}

// adopt moves a rank that belongs to another kind, or to none any more, to k.
func (k *kind) adopt(r *Rank) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kind == k {
		return
	}
	r.kind.remove(r)
	k.add(r)
	r.kind = k
	r.update()
}

// add makes r the last of the ranks.
func (k *kind) add(r *Rank) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.joined++
	r.place = k.joined
	k.ranks = append(k.ranks, r)
}

// remove takes a rank out of the kind.
func (k *kind) remove(r *Rank) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ranks = slices.DeleteFunc(k.ranks, func(o *Rank) bool { return o == r })
	k.known = slices.DeleteFunc(k.known, func(o *Rank) bool { return o == r })
	k.early = slices.DeleteFunc(k.early, func(o *Rank) bool { return o == r })
	r.place = 0
}

// currentKind is the kind that the rank belongs to now.
func (r *Rank) currentKind() *kind {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kind
}

// len is the number of ranks.
func (k *kind) len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.ranks)
}

// publish makes m the Model of r.
func (k *kind) publish(r *Rank, m *Model) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if before := r.model.Load(); before != nil {
		k.known.remove(r)
		k.early.remove(r)
		if before.Samples < experienced && m.Samples >= experienced {
			k.turns.hurry(len(k.known), len(k.ranks)) // or the rank would seem much faster than the ranks that know little, or slower
		}
	}
	r.model.Store(m)
	if r.place == 0 || r.excluded {
		return
	}
	switch {
	case m.Source == decision.SpeedLearned && m.Samples >= experienced:
		k.known.insert(r)
	case m.Source == decision.SpeedLearned && m.Samples > 0, m.Source == decision.SpeedEngine:
		k.early.insert(r)
	}
}

// typical is the Model of the median rank among the experienced ones other than r, which are so many. Where there is none, of is 0, and the
// Model is the median's among the ranks that know something; nil when none does.
func (k *kind) typical(r *Rank) (m *Model, of int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m, of = k.known.median(r); m == nil {
		m, _ = k.early.median(r)
	}
	return m, of
}

// equals is the evidence of a rank's kind about it.
type equals struct {
	typical  *Model // nil when no other rank knows anything
	of       int    // the experienced ranks that it is the median of
	excluded bool   // the rank is no example for its kind
}

// equals returns the kind's evidence about r.
func (k *kind) equals(r *Rank) (e equals) {
	e.typical, e.of = k.typical(r)
	k.mu.Lock()
	defer k.mu.Unlock()
	e.excluded = r.excluded
	return e
}

// plausible leaves out a speed from a few samples of one equal if it is faster than a guess. That a guess is too slow shows soon enough by
// itself, and an engine that is slower than its equals must not have all the requests until then.
func (e equals) plausible() equals {
	if e.of == 0 && e.typical != nil && e.typical.Token < priorToken {
		e.typical = nil
	}
	return e
}

// implausible is the factor by which a rank may be faster than the median of its kind: a larger one is a mistake, or a lie.
const implausible = 4

// fastest is the factor by which the rank may be faster than the median of its kind.
func (e equals) fastest() float64 {
	if e.excluded {
		return 1
	}
	return implausible
}

// slow reports whether a rank seems so much slower than experienced equals that it should be tried again.
func (e equals) slow(m *Model) bool {
	return e.of > 0 && !e.excluded && m.Token >= slowBy*e.typical.Token
}

// learned has ranks that know little follow r's Model, when it is their turn. r.mu is held, so that others are
// only tried.
func (k *kind) learned(r *Rank, now time.Time) {
	var list [atOnce]*Rank
	k.mu.Lock()
	part := append(list[:0], k.turns.take(k.ranks, now)...)
	k.mu.Unlock()
	for _, o := range part {
		if o == r || o.Model().Samples >= proven || !o.mu.TryLock() {
			continue
		}
		o.update()
		o.mu.Unlock()
	}
}
