package chooser

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// kindLabels are the labels of a replica that say what hardware it runs on.
var kindLabels = [...]string{"accelerator", "hardware", "gpu", "node.kubernetes.io/instance-type", "nvidia.com/gpu.product"}

// kindKey names what a replica has in common with others of the same speed: its weights and what is
// known of its hardware.
type kindKey struct {
	model          string
	labels         [len(kindLabels)]string
	blocks, budget int
}

func kindOf(r *replica.Replica) kindKey {
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

// kinds are the sets of ranks that share what they learn. Empty ones are dropped.
type kinds struct {
	byKey map[kindKey]*speed.Kind
	keyOf map[*speed.Kind]kindKey
}

func (ks *kinds) of(r *replica.Replica) *speed.Kind {
	if ks.byKey == nil {
		ks.byKey, ks.keyOf = map[kindKey]*speed.Kind{}, map[*speed.Kind]kindKey{}
	}
	key := kindOf(r)
	k := ks.byKey[key]
	if k == nil {
		k = new(speed.Kind)
		ks.byKey[key], ks.keyOf[k] = k, key
	}
	return k
}

// drop takes the rank out of its kind.
func (ks *kinds) drop(r *rank) {
	r.kind.Remove(r.speed)
	ks.tidy(r.kind)
}

func (ks *kinds) tidy(k *speed.Kind) {
	if k.Len() == 0 {
		delete(ks.byKey, ks.keyOf[k])
		delete(ks.keyOf, k)
	}
}

// newRank makes the memory of rank index of r; ranksMu is held.
func (c *Chooser) newRank(slot replica.Slot, r *replica.Replica, index int) *rank {
	kind := c.kinds.of(r)
	rk := &rank{slot: slot, replica: r.ID, index: index, kind: kind, speed: kind.NewRank()}
	rk.attributes = metric.WithAttributeSet(attribute.NewSet(attribute.String("replica", string(r.ID)), attribute.Int("rank", index)))
	rk.speed.SetBudget(r.MaxBatchedTokens)
	rk.known.Store(r)
	return rk
}

// know takes in what the registry has learned about the replica since the rank was added.
func (c *Chooser) know(rk *rank, r *replica.Replica) {
	c.ranksMu.Lock()
	defer c.ranksMu.Unlock()
	if rk.known.Swap(r) == r || c.rank(rk.slot) != rk {
		return
	}
	rk.speed.SetBudget(r.MaxBatchedTokens)
	kind, old := c.kinds.of(r), rk.kind
	if kind == old {
		return
	}
	rk.kind = kind
	kind.Adopt(rk.speed)
	c.kinds.tidy(old)
}
