package members

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/peers/refusals"
)

// The pace of the gossip, for the few routers of one cluster: a router that dies is noticed within about a second, at the price
// of five probes per second.
const (
	probeInterval  = 200 * time.Millisecond
	probeTimeout   = 100 * time.Millisecond
	suspicion      = 4 // times probeInterval, until a silent member is dead
	suspicionMost  = 3 // times that, where other members do not confirm it
	slowdown       = 4 // times probeInterval at most, for a router that is itself late
	gossipInterval = 100 * time.Millisecond
	syncInterval   = 5 * time.Second
	streamTimeout  = 2 * time.Second
	leaveTimeout   = time.Second

	// rememberDead is how long a member that died is tried, and listed.
	rememberDead = 10 * time.Minute
	// mostDead bounds them.
	mostDead = 64
)

// Resolver looks up names; net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Params has the arguments of New.
type Params struct {
	// ID is this router's, from identity.NewID.
	ID string
	// GossipKey encrypts the gossip.
	GossipKey []byte
	// Host is the name if Config has none.
	Host string
	// WireMajor replaces the constant, in tests.
	WireMajor uint32
	// Resolver looks up names; nil takes the system's.
	Resolver Resolver
	// Watcher follows the members; nil: none.
	Watcher Watcher
	Refused *refusals.Log
	Scope   scope.Scope
}

// Watcher follows the other members. SetMembers is called each time that they have changed, by one goroutine; it must not keep
// Run waiting for long.
type Watcher interface{ SetMembers(list []Member) }

// Sockets are the sockets of Run. Run closes the gossip's.
type Sockets struct {
	TCP net.Listener
	UDP net.PacketConn
	// RPC is the address at which the routers' services listen.
	RPC net.Addr
}

// Members is the list of the fleet's routers.
type Members struct {
	config  Config
	params  Params
	started time.Time
	changed chan struct{} // holds a token when the list differs from the watcher's
	lost    chan struct{} // holds a token when a member has disappeared

	mu     sync.Mutex
	self   Member            // guarded by mu; its addresses are known once Run runs
	others map[string]Member // guarded by mu
}

// New makes Members. It opens nothing. c must be valid, with Listen set.
func New(c Config, p Params) *Members {
	if p.Resolver == nil {
		p.Resolver = net.DefaultResolver
	}
	m := &Members{config: c, params: p, started: time.Now(), changed: make(chan struct{}, 1), lost: make(chan struct{}, 1), others: map[string]Member{}}
	m.self = Member{
		ID: p.ID, Name: cmp.Or(c.Name, p.Host, p.ID), WireMajor: cmp.Or(p.WireMajor, WireMajor), WireMinor: WireMinor, Started: m.started,
	}
	m.observe(p.Scope.Meters())
	return m
}

// Self is this router as a member.
func (m *Members) Self() Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.self
}

// Others lists the other members by id, members that died in the last minutes included.
func (m *Members) Others() []Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := map[string]int{m.self.Name: 1}
	list := make([]Member, 0, len(m.others))
	for _, member := range m.others {
		list = append(list, member)
		if member.State != Dead {
			names[member.Name]++
		}
	}
	for i := range list {
		if list[i].Name == "" || names[list[i].Name] > 1 {
			list[i].Name = strings.TrimPrefix(list[i].Name+"-"+list[i].ID, "-")
		}
	}
	slices.SortFunc(list, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// Seen counts the routers that were alive within d, this one among them, whatever wire version they speak. Routers that have left do not
// count.
func (m *Members) Seen(d time.Duration) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 1
	for _, member := range m.others {
		if member.State != Dead || time.Since(member.died) < d {
			n++
		}
	}
	return n
}

// Run takes part in the gossip until ctx ends, and then leaves.
func (m *Members) Run(ctx context.Context, s Sockets) error {
	closeAll := func() { _ = errors.Join(s.TCP.Close(), s.UDP.Close()) }
	at, err := m.advertised(ctx, s.TCP.Addr())
	if err != nil {
		closeAll()
		return err
	}
	rpc, err := m.advertisedRPC(at.Addr(), s.RPC)
	if err != nil {
		closeAll()
		return err
	}
	m.mu.Lock()
	m.self.gossip, m.self.Address = at, rpc.String()
	self := m.self
	m.mu.Unlock()
	meta, err := self.encode()
	if err != nil {
		closeAll()
		return fmt.Errorf("fleet: %w", err)
	}
	carrier := newTransport(s.TCP, s.UDP, at)
	list, err := memberlist.Create(m.gossipConfig(carrier, meta))
	if err != nil {
		return errors.Join(fmt.Errorf("fleet.listen: %w", err), carrier.Shutdown())
	}
	m.params.Scope.Log().Info("in the fleet", "id", self.ID, "name", self.Name, "gossip", at.String(), "rpc", self.Address)
	carrier.receive()
	var wg sync.WaitGroup
	wg.Go(func() { m.report(ctx) })
	wg.Go(func() { m.join(ctx, list, isLocal(s.TCP.Addr(), at)) })
	wg.Wait()
	m.leave(list)
	return list.Shutdown()
}

// leave says farewell to each member, and has the gossip spread it.
func (m *Members) leave(list *memberlist.Memberlist) {
	var wg sync.WaitGroup
	for _, n := range list.Members() {
		if n.Name == m.params.ID {
			continue
		}
		wg.Go(func() {
			if err := list.SendReliable(n, []byte(m.params.ID)); err != nil {
				m.params.Scope.Log().Debug("a member does not know that this router leaves", "id", n.Name, "error", err)
			}
		})
	}
	wg.Wait()
	if err := list.Leave(leaveTimeout); err != nil {
		m.params.Scope.Log().Debug("the other members may notice late that this router has left", "error", err)
	}
}

func (m *Members) gossipConfig(t *transport, meta []byte) *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name, c.Transport, c.SecretKey = m.params.ID, t, m.params.GossipKey
	c.ProbeInterval, c.ProbeTimeout, c.GossipInterval, c.PushPullInterval, c.TCPTimeout = probeInterval, probeTimeout, gossipInterval, syncInterval, streamTimeout
	c.SuspicionMult, c.SuspicionMaxTimeoutMult, c.AwarenessMaxMultiplier = suspicion, suspicionMost, slowdown
	c.EnableCompression = false // messages are small
	d := &delegate{m, meta}
	c.Delegate, c.Alive, c.Events, c.Conflict = d, d, d, d
	c.LogOutput = nil
	c.Logger = log.New(newLogWriter(m.params.Scope.Log(), m.params.Refused), "", 0)
	return c
}

// report informs the watcher of changes, until ctx ends.
func (m *Members) report(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.changed:
			if m.params.Watcher != nil {
				m.params.Watcher.SetMembers(m.Others())
			}
		}
	}
}

// note stores a change of a member and wakes report.
func (m *Members) note(change func(others map[string]Member)) {
	m.mu.Lock()
	change(m.others)
	m.mu.Unlock()
	select {
	case m.changed <- struct{}{}:
	default:
	}
}
