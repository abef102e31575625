package layout

import (
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// pairs are the ranks of a pool that can pass cache to each other. It is immutable.
type pairs struct {
	Members []selector.Member // of each rank
	Prefill []bool            // of each rank: it serves whole requests only when no other one can
	Classes int
	Lanes   []*transfer.Lane // from class·classes + to class; nil between groups
}

// class is a group of replicas in one part of the network.
type class struct{ group, domain string }

// Lane is the transfer from one rank to another.
func (p *pairs) Lane(from, to int) *transfer.Lane {
	return p.Lanes[int(p.Members[from].Class)*p.Classes+int(p.Members[to].Class)]
}

// newPairs finds the pairs of a pool; nil when there are none.
func newPairs(replicas []*replica.Replica, ranks []Rank, lanes *transfer.Lanes) *pairs {
	if !replica.CanPair(replicas) {
		return nil
	}
	made := &pairs{Members: make([]selector.Member, len(ranks)), Prefill: make([]bool, len(ranks))}
	var list []class
	numbers := map[class]int{}
	for i := range ranks {
		at := &ranks[i]
		m := &made.Members[i]
		m.Owner, m.Class = at.Owner, -1
		c := replicas[at.Owner].Connector()
		if c.Transport == replica.NoTransport {
			continue
		}
		k := class{c.Group, c.Domain}
		number, known := numbers[k]
		if !known {
			number = len(list)
			numbers[k] = number
			list = append(list, k)
		}
		m.Class, m.Prefills, m.Decodes = int16(number), c.Prefills(), c.Decodes()
		made.Prefill[i] = !m.Decodes
	}
	made.Classes = len(list)
	made.Lanes = make([]*transfer.Lane, len(list)*len(list))
	for i, from := range list {
		for j, to := range list {
			if from.group == to.group {
				made.Lanes[i*len(list)+j] = lanes.Of(from.domain, to.domain)
			}
		}
	}
	return made
}
