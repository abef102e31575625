package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	pb "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/observe/telemetry"
	"github.com/kvpilot/kvpilot/server/peers/decide"
	"github.com/kvpilot/kvpilot/server/peers/facts"
	"github.com/kvpilot/kvpilot/server/peers/forward"
	"github.com/kvpilot/kvpilot/server/peers/grants"
	"github.com/kvpilot/kvpilot/server/peers/identity"
	"github.com/kvpilot/kvpilot/server/peers/link"
	"github.com/kvpilot/kvpilot/server/peers/members"
	"github.com/kvpilot/kvpilot/server/peers/refusals"
	"github.com/kvpilot/kvpilot/server/peers/warm"
)

// peers are the parts that join this router with the others of its fleet. A router alone has none.
type peers struct {
	id       string
	frontend *decide.Frontend
	decider  *decide.Decider
	members  *members.Members
	links    *link.Links
	facts    *facts.Store
	warm     *warm.Warm
	forward  *forward.Fleet
	grants   *grants.Grants
	// services registers what other routers may call in addition to PeerService.
	services func(grpc.ServiceRegistrar)
	leaving  atomic.Bool
	pools    poolNames
	// abilities are those of the peers with a link, as they announced them last, by id.
	abilities sync.Map

	// sockets and rpc are open once Server.open has opened them.
	sockets members.Sockets
	rpc     net.Listener
}

// buildPeers makes the parts that a fleet needs, if this router is to be in one.
func (p *parts) buildPeers(c config.Config, t *telemetry.Telemetry) error {
	if c.Fleet.Listen == "" {
		return nil
	}
	key, err := c.Fleet.Secret()
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "" // the id is name enough
	}
	f := &peers{id: identity.NewID(), pools: poolNames{registry: p.registry}}
	who, err := identity.New(key, f.id)
	if err != nil {
		return err
	}
	refused := refusals.New(p.part("peers"), t.Meters())
	f.members = members.New(c.Fleet, members.Params{
		ID: f.id, GossipKey: who.GossipKey(), Host: host, Refused: refused, Log: p.part("members"), Meter: t.Meters(),
		OnChange: func(list []members.Member) { f.links.SetMembers(list) },
	})
	f.facts = facts.New(facts.Params{
		Self: f.id, Peers: f.factPeers, Registry: p.registry, Known: p.registry.Present, Rates: p.chooser, Decides: p.decidesFor, Pins: p.pins, Log: p.part("facts"), Meter: t.Meters(),
	})
	f.warm = warm.New(warm.Params{
		Index: p.kvindex, Peers: f.warmPeers, Delay: p.events.DelayFirstReplays, Missing: p.inexact, MaxBytes: int64(c.KVIndex.MaxBytes), Log: p.part("warm"), Meter: t.Meters(),
	})
	f.grants = grants.New(grants.Params{
		Self: f.id, Fleet: f.limitFleet, Fitness: f.fitness, Accounts: p.limiter, Patience: c.Fleet.Patience, Log: p.part("grants"), Meter: t.Meters(),
	})
	p.limiter.Join(f.grants)
	core := decide.Params{
		Self: decide.ID(f.id), Chooser: p.chooser, RankOf: p.rankOf, Ability: f.ability,
		Pool: f.pools.of, Replicas: p.replicasOf, Broken: p.breaker.Opened,
		SendEvent: func(to decide.ID, event *pb.FrontendEvent) { f.links.SendEvent(string(to), event) },
		SendReply: func(to decide.ID, reply *pb.DeciderReply) { f.links.SendReply(string(to), reply) },
		After:     func(d time.Duration, f func()) { time.AfterFunc(d, f) },
		Log:       p.part("decide"), Meter: t.Meters(),
		Tracer: t.Tracers().Tracer("github.com/kvpilot/kvpilot/server/peers/decide", trace.WithSchemaURL(span.SchemaURL)),
	}
	bounds := decide.Config{Patience: c.Fleet.Patience, Grace: c.Fleet.Grace}
	f.frontend, f.decider = decide.NewFrontend(bounds, core), decide.NewDecider(bounds, core)
	f.links, err = link.New(link.Params{
		ID: f.id, Name: cmp.Or(c.Fleet.Name, host, f.id), Identity: who, Refused: refused, Ability: f.ability,
		Frontend: link.Frontend{
			Up: f.up, Down: f.down,
			Reply: func(from string, reply *pb.DeciderReply) {
				if pong := reply.GetPong(); pong != nil {
					f.abilities.Store(from, pong.GetAbility())
				}
				f.frontend.Reply(decide.ID(from), reply)
			},
		},
		Decider: link.Decider{
			Up:    func(id string) { f.decider.Up(decide.ID(id)) },
			Down:  func(id string) { f.decider.Down(decide.ID(id)) },
			Event: func(from string, event *pb.FrontendEvent) { f.decider.Event(decide.ID(from), event) },
		},
		PullIndex: f.warm.PullIndex,
		ShareFacts: func(ctx context.Context, _ string, in *pb.ShareFactsRequest) (*pb.ShareFactsResponse, error) {
			return f.facts.ShareFacts(ctx, in)
		},
		ShareLimits: f.grants.ShareLimits,
		Register:    func(to grpc.ServiceRegistrar) { f.services(to) },
		Log:         p.part("link"), Meter: t.Meters(),
	})
	f.forward = forward.New(forward.Params{
		Self: f.members.Self, Others: f.members.Others, Requests: f.frontend.Requests,
		Conn:    func(id string) (grpc.ClientConnInterface, bool) { return f.links.Conn(id) },
		Decider: func(model string) string { return string(f.frontend.Decider(model)) },
		Able:    func() bool { return f.ability() == pb.Ability_ABILITY_ABLE },
	})
	p.peers = f
	return err
}

// up and down follow the links to other routers.
func (f *peers) up(id string, ability pb.Ability) {
	f.abilities.Store(id, ability)
	f.frontend.Up(decide.ID(id), ability)
	f.facts.PeersChanged()
	f.grants.PeersChanged()
}

func (f *peers) down(id string) {
	f.abilities.Delete(id)
	f.frontend.Down(decide.ID(id))
	f.facts.PeersChanged()
	f.grants.PeersChanged()
}

// ability is how fit this router is to decide: a new one leaves that to those with an index, until it has pulled theirs.
func (f *peers) ability() pb.Ability {
	switch {
	case f.leaving.Load():
		return pb.Ability_ABILITY_LEAVING
	case !f.warm.Settled():
		return pb.Ability_ABILITY_UNABLE
	}
	return pb.Ability_ABILITY_ABLE
}

// factPeers are the connections over which facts are shared.
func (f *peers) factPeers() []facts.Peer {
	var list []facts.Peer
	for _, id := range f.links.Peers() {
		if conn, ok := f.links.Conn(id); ok {
			list = append(list, facts.Peer{ID: id, Conn: conn})
		}
	}
	return list
}

// seenLately is for how long a router that is not reached counts as one that grants its share of tenants' limits elsewhere.
const seenLately = time.Minute

// limitFleet is which routers share the limits of tenants.
func (f *peers) limitFleet() grants.Fleet {
	fleet := grants.Fleet{Seen: f.members.Seen(seenLately)}
	for _, m := range f.members.Others() {
		if m.State == members.Stranger || m.WireMinor < members.MinorLimits {
			if m.State != members.Dead {
				fleet.Old++
			}
			continue
		}
		if conn, ok := f.links.Conn(m.ID); ok {
			fleet.Peers = append(fleet.Peers, grants.Peer{ID: m.ID, Conn: conn})
		}
	}
	return fleet
}

// fitness is how fit a router is to own the accounts of tenants.
func (f *peers) fitness(id string) grants.Fitness {
	ability := f.ability()
	if id != f.id {
		known, _ := f.abilities.Load(id)
		ability, _ = known.(pb.Ability)
	}
	switch ability {
	case pb.Ability_ABILITY_ABLE:
		return grants.Able
	case pb.Ability_ABILITY_LEAVING:
		return grants.Leaving
	default:
		return grants.Unable
	}
}

// warmPeers are the connections over which an index may be pulled: of peers that have one, those that stay first.
func (f *peers) warmPeers() []warm.Peer {
	var list, leaving []warm.Peer
	for _, id := range f.links.Peers() {
		conn, ok := f.links.Conn(id)
		if !ok {
			continue
		}
		switch ability, _ := f.abilities.Load(id); ability {
		case pb.Ability_ABILITY_ABLE:
			list = append(list, warm.Peer{ID: id, Conn: conn})
		case pb.Ability_ABILITY_LEAVING:
			leaving = append(leaving, warm.Peer{ID: id, Conn: conn})
		}
	}
	return append(list, leaving...)
}

// inexact lists the replicas with a rank whose events come and whose cache is not known exactly, although no replay runs.
func (p *parts) inexact() (list []replica.ID) {
	fleet := p.registry.Snapshot()
	for _, s := range p.events.Statuses() {
		if s.Endpoint == "" || !s.Connected || s.Recovering || s.State == kvblock.FeedExact {
			continue
		}
		if r, _, ok := fleet.BySlot(s.Slot); ok && !slices.Contains(list, r.ID) {
			list = append(list, r.ID)
		}
	}
	return list
}

// decidesFor reports whether this router decides for a replica's pool.
func (p *parts) decidesFor(id replica.ID) bool {
	r, ok := p.registry.Snapshot().Replica(id)
	return ok && len(r.Models) > 0 && p.peers.frontend.Decider(r.Models[0].ID) == decide.ID(p.peers.id)
}

// open opens the gossip's and the routers' addresses, and has the connections to the latter counted. A router alone opens nothing.
func (f *peers) open(ctx context.Context, c members.Config, given Listeners, counted func(net.Listener) net.Listener, at *Addresses) (err error) {
	if f == nil {
		return nil
	}
	f.sockets.TCP, f.sockets.UDP, f.rpc = given.Gossip, given.GossipPackets, given.Peers
	listen := new(net.ListenConfig)
	if f.sockets.TCP == nil {
		if f.sockets.TCP, err = listen.Listen(ctx, "tcp", c.Listen); err != nil {
			return errors.Join(fmt.Errorf("fleet.listen: %w", err), f.close())
		}
	}
	if f.sockets.UDP == nil {
		if f.sockets.UDP, err = listen.ListenPacket(ctx, "udp", samePort(c.Listen, f.sockets.TCP.Addr())); err != nil {
			return errors.Join(fmt.Errorf("fleet.listen: %w", err), f.close())
		}
	}
	if f.rpc == nil {
		if f.rpc, err = listen.Listen(ctx, "tcp", c.RPCAddress()); err != nil {
			return errors.Join(fmt.Errorf("fleet.rpc_listen: %w", err), f.close())
		}
	}
	f.rpc = counted(f.rpc)
	f.sockets.RPC = f.rpc.Addr()
	at.Gossip, at.Peers = f.sockets.TCP.Addr().String(), f.rpc.Addr().String()
	return nil
}

// samePort is address with the port of another one, because port 0 takes any.
func samePort(address string, as net.Addr) string {
	host, _, err := net.SplitHostPort(address)
	tcp, ok := as.(*net.TCPAddr)
	if err != nil || !ok {
		return address
	}
	return net.JoinHostPort(host, strconv.Itoa(tcp.Port))
}

// close closes what open has opened, when the router does not start.
func (f *peers) close() error {
	if f == nil {
		return nil
	}
	var errs []error
	if f.sockets.TCP != nil {
		errs = append(errs, f.sockets.TCP.Close())
	}
	if f.sockets.UDP != nil {
		errs = append(errs, f.sockets.UDP.Close())
	}
	if f.rpc != nil {
		errs = append(errs, f.rpc.Close())
	}
	return errors.Join(errs...)
}

// background lists the work of the parts.
func (f *peers) background() []component {
	if f == nil {
		return nil
	}
	return []component{
		{"fleet", func(ctx context.Context) error { return f.members.Run(ctx, f.sockets) }},
		{"links", func(ctx context.Context) error { return f.links.Run(ctx, f.rpc) }},
		{"frontend", f.frontend.Run},
		{"decider", f.decider.Run},
		{"facts", f.facts.Run},
		{"warm", f.warm.Run},
		{"grants", f.grants.Run},
	}
}

// leave announces that this router is about to stop, so that others decide for its pools from now on.
func (f *peers) leave() {
	if f != nil {
		f.leaving.Store(true)
	}
}

// fleet passes calls on to the other routers; nil for a router alone.
func (f *peers) fleet() *forward.Fleet {
	if f == nil {
		return nil
	}
	return f.forward
}

// origin begins the ids of this router's decisions.
func (f *peers) origin() string {
	if f == nil {
		return ""
	}
	return f.id
}

// replicasOf are the replicas that serve a model, by either of its names.
func (p *parts) replicasOf(model, served string) []*replica.Replica {
	s := p.registry.Snapshot()
	for _, name := range []string{model, served} {
		if pool, ok := s.Pool(name); ok {
			return pool.Replicas
		}
	}
	return nil
}
