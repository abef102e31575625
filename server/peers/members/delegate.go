package members

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/kvpilot/kvpilot/server/peers/refusals"
)

// delegate is called by memberlist, with locks of its own held: nothing here calls it back.
type delegate struct {
	members *Members
	meta    []byte
}

var (
	_ memberlist.Delegate         = (*delegate)(nil)
	_ memberlist.AliveDelegate    = (*delegate)(nil)
	_ memberlist.EventDelegate    = (*delegate)(nil)
	_ memberlist.ConflictDelegate = (*delegate)(nil)
)

// NodeMeta implements memberlist.Delegate.
func (d *delegate) NodeMeta(int) []byte { return d.meta }

// NotifyMsg implements memberlist.Delegate: the one message is a member's farewell, its id. memberlist itself does not say whether
// a member that it lists no more has left or died.
func (d *delegate) NotifyMsg(farewell []byte) {
	m, id := d.members, string(farewell)
	var member Member
	var known bool
	m.note(func(others map[string]Member) {
		member, known = others[id]
		delete(others, id)
	})
	if known {
		m.params.Scope.Log().Info("a router has left the fleet", "id", id, "name", member.Name, "address", member.Address)
	}
}

// GetBroadcasts implements memberlist.Delegate.
func (d *delegate) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (d *delegate) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (d *delegate) MergeRemoteState([]byte, bool) {}

// errOwnAddress refuses a member that announces this router's address.
var errOwnAddress = errors.New("it announces this router's own address")

// ownAddressAfter is the age from which such a member is no earlier life of this router, of which the others still speak.
const ownAddressAfter = 15 * time.Second

// NotifyAlive implements memberlist.AliveDelegate: it refuses members whose announcement cannot be true.
func (d *delegate) NotifyAlive(n *memberlist.Node) error {
	m := d.members
	if n.Name == m.params.ID {
		return nil // a copy of this router's id is a conflict of addresses
	}
	member, err := decode(n)
	if err != nil {
		reason := refusals.Malformed
		if errors.Is(err, errID) {
			reason = refusals.Identity
		}
		m.params.Refused.Refuse(reason, n.Name, "a router that announces itself wrongly is no member", "error", err, "gossip", n.Address())
		return err
	}
	self := m.Self()
	if member.gossip != self.gossip && member.Address != self.Address {
		return nil
	}
	if time.Since(m.started) > ownAddressAfter {
		m.params.Refused.Refuse(refusals.Address, member.ID, "a router announces this router's own address and is no member: fleet.advertise must not be the address of a Service or load balancer",
			"gossip", member.gossip.String(), "rpc", member.Address)
	}
	return fmt.Errorf("%w, %s", errOwnAddress, member.gossip)
}

// NotifyJoin implements memberlist.EventDelegate.
func (d *delegate) NotifyJoin(n *memberlist.Node) { d.update(n, true) }

// NotifyUpdate implements memberlist.EventDelegate.
func (d *delegate) NotifyUpdate(n *memberlist.Node) { d.update(n, false) }

func (d *delegate) update(n *memberlist.Node, joined bool) {
	m := d.members
	member, err := decode(n)
	if err != nil || member.ID == m.params.ID {
		return
	}
	if member.WireMajor != m.Self().WireMajor {
		member.State = Stranger
		m.params.Refused.Refuse(refusals.Wire, member.ID, "a router of another wire version is not used", "name", member.Name, "address", member.Address, "wire", member.WireMajor, "own", m.Self().WireMajor)
	}
	if joined {
		m.params.Scope.Log().Info("a router is in the fleet", "id", member.ID, "name", member.Name, "address", member.Address, "state", member.State.String())
	}
	taken := false
	m.note(func(others map[string]Member) {
		taken = m.isNameTaken(member)
		others[member.ID] = member
		for id, old := range others { // a router that was restarted
			if old.State == Dead && old.Address == member.Address {
				delete(others, id)
			}
		}
	})
	if taken {
		m.params.Refused.Refuse(refusals.Name, member.Name, "two routers have one name and are shown with their ids: set fleet.name", "id", member.ID, "address", member.Address)
	}
}

// isNameTaken reports whether a living member at another address has the name. The caller holds mu.
func (m *Members) isNameTaken(member Member) bool {
	if member.Name == m.self.Name {
		return true
	}
	for id, other := range m.others {
		if id != member.ID && other.Name == member.Name && other.State != Dead && other.Address != member.Address {
			return true
		}
	}
	return false
}

// NotifyLeave implements memberlist.EventDelegate. A member that has said farewell is unknown by now.
func (d *delegate) NotifyLeave(n *memberlist.Node) {
	m := d.members
	var member Member
	var known bool
	m.note(func(others map[string]Member) {
		if member, known = others[n.Name]; !known {
			return
		}
		member.State, member.died = Dead, time.Now()
		others[n.Name] = member
		forgetDead(others, member.died)
	})
	if !known {
		return
	}
	m.params.Scope.Log().Warn("a router of the fleet does not answer", "id", member.ID, "name", member.Name, "address", member.Address)
	select {
	case m.lost <- struct{}{}:
	default:
	}
}

// forgetDead bounds the members that are remembered after their death, by time and by number.
func forgetDead(others map[string]Member, now time.Time) {
	var oldest string
	dead := 0
	for id, member := range others {
		if member.State != Dead {
			continue
		}
		if now.Sub(member.died) >= rememberDead {
			delete(others, id)
			continue
		}
		dead++
		if oldest == "" || member.died.Before(others[oldest].died) {
			oldest = id
		}
	}
	if dead > mostDead {
		delete(others, oldest)
	}
}

// NotifyConflict implements memberlist.ConflictDelegate: two routers announce one id, and the first one keeps it.
func (d *delegate) NotifyConflict(existing, other *memberlist.Node) {
	d.members.params.Refused.Refuse(refusals.Conflict, existing.Name, "a router announces the id of another one and is no member",
		"address", existing.Address(), "refused", other.Address())
}

// known reports whether a gossip address is a member's.
func (m *Members) known(at netip.AddrPort) (member, alive bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, other := range m.others {
		if other.gossip == at {
			member, alive = true, alive || other.State != Dead
		}
	}
	return member, alive
}
