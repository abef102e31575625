package speed

import (
	"slices"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Kind is a set of ranks that are expected to be equally fast: the same model on the same hardware.
type Kind struct {
	key kindKey // of the Kinds that made it

	mu      sync.Mutex
	ranks   []*Rank   // guarded by mu
	updated time.Time // when ranks that know little were last made to follow; guarded by mu
}

const (
	// experienced is the number of samples from which a rank's Model counts for its kind.
	experienced = 4
	// followEvery bounds how often ranks that know little are updated.
	followEvery = 100 * time.Millisecond
	// defaultBudget is the tokens per step when the engine does not report them.
	defaultBudget = 2048
)

// NewRank adds a rank to the kind.
func (k *Kind) NewRank() *Rank {
	r := &Rank{kind: k, budget: defaultBudget}
	k.mu.Lock()
	k.ranks = append(k.ranks, r)
	k.mu.Unlock()
	r.mu.Lock()
	r.update()
	r.mu.Unlock()
	return r
}

// Adopt moves a rank that belongs to another kind, or to none any more, to k.
func (k *Kind) Adopt(r *Rank) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kind == k {
		return
	}
	r.kind.Remove(r)
	k.mu.Lock()
	k.ranks = append(k.ranks, r)
	k.mu.Unlock()
	r.kind = k
	r.update()
}

// Remove takes a rank out of the kind.
func (k *Kind) Remove(r *Rank) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ranks = slices.DeleteFunc(k.ranks, func(o *Rank) bool { return o == r })
}

// Kind is the kind of the rank.
func (r *Rank) Kind() *Kind {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kind
}

// Len is the number of ranks.
func (k *Kind) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.ranks)
}

// typical is the Model of the median rank among the experienced ones other than r; nil when there is
// none.
func (k *Kind) typical(r *Rank) *Model {
	k.mu.Lock()
	defer k.mu.Unlock()
	models := make([]*Model, 0, 16)
	for _, o := range k.ranks {
		if o == r {
			continue
		}
		if m := o.model.Load(); m != nil && m.Source == decision.SpeedLearned && m.Samples >= experienced {
			models = append(models, m)
		}
	}
	if len(models) == 0 {
		return nil
	}
	slices.SortFunc(models, func(a, b *Model) int {
		switch {
		case a.Token < b.Token:
			return -1
		case a.Token > b.Token:
			return 1
		}
		return 0
	})
	return models[(len(models)-1)/2]
}

// learned has ranks that know little follow what r has learned. r.mu is held, so that others are
// only tried.
func (k *Kind) learned(r *Rank, now time.Time) {
	k.mu.Lock()
	if now.Sub(k.updated) < followEvery && !k.updated.IsZero() {
		k.mu.Unlock()
		return
	}
	k.updated = now
	ranks := slices.Clone(k.ranks)
	k.mu.Unlock()
	for _, o := range ranks {
		if o == r || o.Model().Samples >= proven || !o.mu.TryLock() {
			continue
		}
		o.update()
		o.mu.Unlock()
	}
}
