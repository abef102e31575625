package speed

import "github.com/kvpilot/kvpilot/server/domain/replica"

// kindLabels are the labels of a replica that name the hardware it runs on.
var kindLabels = [...]string{"accelerator", "hardware", "gpu", "node.kubernetes.io/instance-type", "nvidia.com/gpu.product"}

// kindKey names what a replica has in common with others of the same speed: its weights and what is
// known of its hardware.
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

// Kinds finds the Kind of a replica. Its zero value is empty; it is not safe for concurrent use.
type Kinds struct{ byKey map[kindKey]*Kind }

// Add makes a Rank of the replica's kind.
func (ks *Kinds) Add(r *replica.Replica) *Rank {
	rank := ks.of(r).NewRank()
	rank.SetBudget(r.MaxBatchedTokens)
	return rank
}

// Update moves the rank to the kind of its replica, of which more is known now.
func (ks *Kinds) Update(rank *Rank, r *replica.Replica) {
	rank.SetBudget(r.MaxBatchedTokens)
	old := rank.Kind()
	if kind := ks.of(r); kind != old {
		kind.Adopt(rank)
		ks.tidy(old)
	}
}

// Remove removes the rank from its kind.
func (ks *Kinds) Remove(rank *Rank) {
	kind := rank.Kind()
	kind.Remove(rank)
	ks.tidy(kind)
}

func (ks *Kinds) of(r *replica.Replica) *Kind {
	if ks.byKey == nil {
		ks.byKey = map[kindKey]*Kind{}
	}
	key := keyOf(r)
	k := ks.byKey[key]
	if k == nil {
		k = &Kind{key: key}
		ks.byKey[key] = k
	}
	return k
}

// tidy drops an empty kind.
func (ks *Kinds) tidy(k *Kind) {
	if k.Len() == 0 {
		delete(ks.byKey, k.key)
	}
}
