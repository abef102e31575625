package directory

import (
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// instances are the replicas of a pool by the service's names for them, with the parts of a prompt that they hold.
type instances struct {
	byName map[string][]*replica.Replica
	held   map[replica.Slot]Held
	found  bool
	// blockSize is the first known one of a replica; 0 where none is known.
	blockSize int
}

// instancesOf finds the replicas that the service knows.
func instancesOf(replicas []*replica.Replica) *instances {
	to := &instances{}
	for _, r := range replicas {
		name := r.Labels[replica.LabelInstance]
		if name == "" {
			continue
		}
		if to.byName == nil {
			to.byName, to.held = map[string][]*replica.Replica{}, map[replica.Slot]Held{}
		}
		to.byName[name] = append(to.byName[name], r)
		if to.blockSize == 0 {
			to.blockSize = r.BlockSize
		}
	}
	return to
}

// hold notes the part of a prompt that a rank of an instance, or every rank when rank is below zero, can load. Ranks and instances that the pool lacks
// are ignored.
func (to *instances) hold(name string, rank int, part Held) {
	if part.Host = max(part.Host, part.From); part.Store <= part.Host {
		part.Store = part.Host
	}
	if part.Store == part.From {
		return
	}
	for _, r := range to.byName[name] {
		for i, slot := range r.Slots {
			if rank < 0 || i == rank {
				part.Slot = slot
				to.held[slot], to.found = part, true
			}
		}
	}
}

// list returns the ranks that hold a part, in no particular order.
func (to *instances) list() []Held {
	all := make([]Held, 0, len(to.held))
	for _, h := range to.held {
		all = append(all, h)
	}
	return all
}
