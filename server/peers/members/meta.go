package members

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/memberlist"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/peers/identity"
)

// The wire version of this code. Routers with the same WireMajor work together; WireMinor counts additions.
const (
	WireMajor = 2
	WireMinor = 1
)

// State is how this router sees a member.
type State int

// The states.
const (
	// Alive: it answers and speaks this wire version.
	Alive State = iota
	// Stranger: it answers and speaks another major wire version.
	Stranger
	// Dead: it does not answer any more and has not said that it leaves.
	Dead
)

// String names the state.
func (s State) String() string {
	switch s {
	case Alive:
		return "alive"
	case Stranger:
		return "stranger"
	case Dead:
		return "dead"
	}
	return "unknown"
}

// Member is a router of the fleet.
type Member struct {
	// ID is random for each process.
	ID string
	// Name is for operators: the configured one, with the id where two members have one name.
	Name string
	// Address is the host and port at which the other routers reach it.
	Address string
	// WireMajor and WireMinor are its wire version.
	WireMajor, WireMinor uint32
	// Started is by its own clock; zero when it is not known.
	Started time.Time
	// State is how this router sees it.
	State State

	gossip netip.AddrPort
	died   time.Time
}

// encode makes the metadata of a member.
func (m Member) encode() ([]byte, error) {
	meta, err := proto.Marshal(&pb.Membership{
		RouterId: m.ID, Name: m.Name, Address: m.Address, WireMajor: m.WireMajor, WireMinor: m.WireMinor, Started: timestamppb.New(m.Started),
	})
	if err == nil && len(meta) > memberlist.MetaMaxSize {
		err = fmt.Errorf("name and address are too long: %d bytes of %d", len(meta), memberlist.MetaMaxSize)
	}
	return meta, err
}

// errors of a member's announcement
var (
	errMeta    = errors.New("its metadata is not of the contract")
	errID      = errors.New("its id and the name of its gossip differ")
	errAddress = errors.New("its address is not one that can be reached")
)

// decode reads a node's announcement.
func decode(n *memberlist.Node) (Member, error) {
	var meta pb.Membership
	if err := proto.Unmarshal(n.Meta, &meta); err != nil {
		return Member{}, errMeta
	}
	if !identity.IsID(n.Name) || meta.GetRouterId() != n.Name {
		return Member{}, errID
	}
	if len(meta.GetName()) > maxName || !utf8.ValidString(meta.GetName()) {
		return Member{}, errMeta
	}
	at, err := netip.ParseAddrPort(meta.GetAddress())
	if err != nil || at.Port() == 0 || !reachable(at.Addr()) {
		return Member{}, errAddress
	}
	ip, ok := netip.AddrFromSlice(n.Addr)
	if !ok || n.Port == 0 || !reachable(ip.Unmap()) {
		return Member{}, errAddress
	}
	m := Member{
		ID: n.Name, Name: meta.GetName(), Address: at.String(), WireMajor: meta.GetWireMajor(), WireMinor: meta.GetWireMinor(),
		gossip: netip.AddrPortFrom(ip.Unmap(), n.Port),
	}
	if meta.GetStarted().IsValid() {
		m.Started = meta.GetStarted().AsTime()
	}
	return m, nil
}

func reachable(ip netip.Addr) bool { return ip.IsValid() && !ip.IsUnspecified() && !ip.IsMulticast() }
