package speed

import (
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// kindLabels are the labels of a replica that name the hardware it runs on.
var kindLabels = [...]string{"accelerator", "hardware", "gpu", "node.kubernetes.io/instance-type", "nvidia.com/gpu.product"}

// kindKey names the common features of replicas of the same speed: the weights and the known hardware.
type kindKey struct {
	model          string
	labels         [len(kindLabels)]string
	blocks, budget int
}

func keyOf(r *replica.Replica) kindKey {
	k := kindKey{blocks: r.Blocks, budget: r.MaxBatchedTokens}
	for _, m := range r.Models {
		if m.Parent == "" {
			if k.model = m.Root; k.model == "" {
				k.model = m.ID
			}
			break
		}
	}
	for i, name := range kindLabels {
		k.labels[i] = r.Labels[name]
	}
	return k
}

// Kind names the rank's kind, comparably, and the model that it serves.
func (r *Rank) Kind() (kind any, model string) {
	k := r.currentKind()
	return k, k.key.model
}

// Exclude sets whether the rank is an example for its kind. One that is not is taken to be no faster than the others.
func (r *Rank) Exclude(yes bool) {
	k := r.currentKind()
	k.mu.Lock()
	changed := r.excluded != yes
	r.excluded = yes
	ranks := slices.Clone(k.ranks)
	k.mu.Unlock()
	if !changed {
		return
	}
	update := func(o *Rank) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.update()
	}
	update(r)
	for _, o := range ranks {
		if o != r {
			update(o)
		}
	}
}

// Kinds finds the kind of a replica. Its zero value is empty; it is not safe for concurrent use.
type Kinds struct{ byKey map[kindKey]*kind }

// Add makes a Rank of the replica's kind.
func (ks *Kinds) Add(r *replica.Replica) *Rank {
	rank := ks.of(r).newRank()
	rank.setBudget(r.MaxBatchedTokens)
	return rank
}

// Update moves the rank to the kind of its replica, of which more is known now.
func (ks *Kinds) Update(rank *Rank, r *replica.Replica) {
	rank.setBudget(r.MaxBatchedTokens)
	old := rank.currentKind()
	if kind := ks.of(r); kind != old {
		kind.adopt(rank)
		ks.tidy(old)
	}
}

// Remove removes the rank from its kind.
func (ks *Kinds) Remove(rank *Rank) {
	kind := rank.currentKind()
	kind.remove(rank)
	ks.tidy(kind)
}

func (ks *Kinds) of(r *replica.Replica) *kind {
	if ks.byKey == nil {
		ks.byKey = map[kindKey]*kind{}
	}
	key := keyOf(r)
	k := ks.byKey[key]
	if k == nil {
		k = &kind{key: key}
		ks.byKey[key] = k
	}
	return k
}

// tidy drops an empty kind.
func (ks *Kinds) tidy(k *kind) {
	if k.len() == 0 {
		delete(ks.byKey, k.key)
	}
}
