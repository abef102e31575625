package members

import (
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
)

// Announce has m, which has run for so long at the gossip address own, judge a node.
func Announce(m *Members, age time.Duration, own netip.AddrPort, n *memberlist.Node) error {
	m.started = time.Now().Add(-age)
	m.mu.Lock()
	m.self.gossip, m.self.Address = own, netip.AddrPortFrom(own.Addr(), own.Port()+1).String()
	m.mu.Unlock()
	return (&delegate{members: m}).NotifyAlive(n)
}

// Encode makes a member's metadata.
func Encode(m Member) ([]byte, error) { return m.encode() }

// Decode reads a node's announcement.
func Decode(n *memberlist.Node) (Member, error) { return decode(n) }
