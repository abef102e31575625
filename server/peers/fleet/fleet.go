package fleet

import (
	"cmp"
	"context"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	pb "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/peers/decide"
	"github.com/kvpilot/kvpilot/server/peers/facts"
	"github.com/kvpilot/kvpilot/server/peers/forward"
	"github.com/kvpilot/kvpilot/server/peers/grants"
	"github.com/kvpilot/kvpilot/server/peers/identity"
	"github.com/kvpilot/kvpilot/server/peers/link"
	"github.com/kvpilot/kvpilot/server/peers/members"
	"github.com/kvpilot/kvpilot/server/peers/refusals"
	"github.com/kvpilot/kvpilot/server/peers/warm"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
)

// Params are this router's own parts, which the fleet joins with the others' parts. All are required.
type Params struct {
	Registry *registry.Registry
	Breaker  *breaker.Breaker
	Chooser  *chooser.Chooser
	Index    *kvindex.Index
	// IndexBytes is the memory that the index may take.
	IndexBytes int64
	Feeds      *kvevents.Plane
	Pins       facts.Pins
	Accounts   grants.Accounts

	Scope scope.Scope
}

// Fleet is this router among the others. Make one with New, Open its sockets, and Run it once.
type Fleet struct {
	id       string
	replicas replicas
	feeds    *kvevents.Plane
	members  *members.Members
	links    *link.Links
	frontend *decide.Frontend
	decider  *decide.Decider
	facts    *facts.Store
	warm     *warm.Warm
	grants   *grants.Grants
	steps    *forward.Announcer
	abilities
	sockets
}

// New makes the parts that a fleet needs. c must be valid and have an address to listen at. It opens and starts nothing.
func New(c members.Config, p Params) (*Fleet, error) {
	key, err := c.Secret()
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "" // the id is name enough
	}
	f := &Fleet{id: identity.NewID(), feeds: p.Feeds, replicas: replicas{registry: p.Registry, breaker: p.Breaker, pools: &poolNames{registry: p.Registry}}}
	who, err := identity.New(key, f.id)
	if err != nil {
		return nil, err
	}
	part := p.Scope.Part
	f.facts = facts.New(facts.Params{Self: f.id, Fleet: f, Registry: p.Registry, Rates: p.Chooser.Learned(), Pins: p.Pins, Scope: part("facts")})
	f.warm = warm.New(warm.Params{Index: p.Index, Fleet: f, Feeds: p.Feeds, MaxBytes: p.IndexBytes, Scope: part("warm")})
	f.index = f.warm
	f.grants = grants.New(grants.Params{Self: f.id, Routers: f, Accounts: p.Accounts, Patience: c.Patience, Scope: part("grants")})
	f.steps = forward.NewAnnouncer(f.Forward(), part("splits").Log())
	core := decide.Params{
		Self: f.id, Chooser: p.Chooser, Replicas: f.replicas, Fleet: f, Scope: part("decide"),
	}
	bounds := decide.Config{Patience: c.Patience, Grace: c.Grace}
	f.frontend, f.decider = decide.NewFrontend(bounds, core), decide.NewDecider(bounds, core)
	refused := refusals.New(part("peers"))
	f.links, err = link.New(link.Params{
		ID: f.id, Name: cmp.Or(c.Name, host, f.id), Identity: who, Refused: refused, Able: f, Frontend: f, Decider: f.decider,
		Index: f.warm, Facts: f.facts, Limits: f.grants, Scope: part("link"),
	})
	if err != nil {
		return nil, err
	}
	f.members = members.New(c, members.Params{ID: f.id, GossipKey: who.GossipKey(), Host: host, Watcher: f.links, Refused: refused, Scope: part("members")})
	return f, nil
}

// ID is this router's, with which the ids of its decisions begin.
func (f *Fleet) ID() string { return f.id }

// Frontend chooses for this router's requests.
func (f *Fleet) Frontend() *decide.Frontend { return f.frontend }

// Facts returns the facts that all routers must know.
func (f *Fleet) Facts() *facts.Store { return f.facts }

// Limits grants the limits of tenants over all routers.
func (f *Fleet) Limits() *grants.Grants { return f.grants }

// Forward passes calls on to the other routers.
func (f *Fleet) Forward() *forward.Fleet { return forward.New(f) }

// Announcer has the other routers repeat steps of a rule at this one. It is nil where f is.
func (f *Fleet) Announcer() *forward.Announcer {
	if f == nil {
		return nil
	}
	return f.steps
}

// Offer adds services that the other routers may call. It must be called before Run.
func (f *Fleet) Offer(s link.Services) { f.links.Offer(s) }

// Run does the parts' work until ctx ends, on the sockets of Open.
func (f *Fleet) Run(ctx context.Context) error {
	rest, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	running, rest := errgroup.WithContext(rest)
	running.Go(func() error { return f.members.Run(rest, f.gossip) })
	running.Go(func() error { return f.links.Run(rest, f.rpc) })
	for _, run := range []func(context.Context) error{f.frontend.Run, f.decider.Run, f.facts.Run, f.warm.Run, f.steps.Run} {
		running.Go(func() error { return run(rest) })
	}
	lending, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(rest, cancel)
	running.Go(func() error { defer stop(); return f.grants.Run(lending) }) // its last report needs the links
	return running.Wait()
}

// Up and Down follow the links to other routers, Reply takes their deciders' answers.
func (f *Fleet) Up(id string, ability pb.Ability) {
	f.announced(id, ability)
	f.frontend.Up(id, ability)
	f.facts.PeersChanged()
	f.grants.PeersChanged()
}

// Down is Up's counterpart.
func (f *Fleet) Down(id string) {
	f.forget(id)
	f.frontend.Down(id)
	f.facts.PeersChanged()
	f.grants.PeersChanged()
}

// Reply takes a reply of a peer's decider, which may announce its ability.
func (f *Fleet) Reply(from string, reply *pb.DeciderReply) {
	if pong := reply.GetPong(); pong != nil {
		f.announced(from, pong.GetAbility())
	}
	f.frontend.Reply(from, reply)
}

// SendEvent passes a frontend's event to a peer's decider, SendReply a decider's reply to a peer's frontend.
func (f *Fleet) SendEvent(to string, event *pb.FrontendEvent) { f.links.SendEvent(to, event) }

// SendReply is SendEvent's counterpart.
func (f *Fleet) SendReply(to string, reply *pb.DeciderReply) { f.links.SendReply(to, reply) }

// Self is this router as a member, Others are the other members.
func (f *Fleet) Self() members.Member { return f.members.Self() }

// Others lists the other members.
func (f *Fleet) Others() []members.Member { return f.members.Others() }

// Conn is the connection to a member; ok is false unless the link to it is up.
func (f *Fleet) Conn(id string) (grpc.ClientConnInterface, bool) {
	conn, ok := f.links.Conn(id)
	return conn, ok
}

// Decider is the id of the router that decides for a model.
func (f *Fleet) Decider(model string) string { return f.frontend.Decider(model) }

// Requests counts the requests in flight that came to this router.
func (f *Fleet) Requests() int { return f.frontend.Requests() }

// Decides reports whether this router decides for a replica's pool.
func (f *Fleet) Decides(id replica.ID) bool {
	r, ok := f.replicas.registry.Snapshot().Replica(id)
	return ok && len(r.Models) > 0 && f.Decider(r.Models[0].ID) == f.id
}

// FactPeers are the connections over which facts are shared.
func (f *Fleet) FactPeers() []facts.Peer {
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

// LimitFleet is which routers share the limits of tenants.
func (f *Fleet) LimitFleet() grants.Fleet {
	fleet := grants.Fleet{Seen: f.members.Seen(seenLately)}
	for _, m := range f.members.Others() {
		if m.State == members.Stranger {
			fleet.Strangers++
			continue
		}
		if conn, ok := f.links.Conn(m.ID); ok {
			fleet.Peers = append(fleet.Peers, grants.Peer{ID: m.ID, Conn: conn})
		}
	}
	return fleet
}

// Fitness is how fit a router is to own the accounts of tenants.
func (f *Fleet) Fitness(id string) grants.Fitness {
	ability := f.Ability()
	if id != f.id {
		ability = f.of(id)
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

// IndexPeers are the connections over which an index may be pulled: of peers that have one, staying ones first.
func (f *Fleet) IndexPeers() []warm.Peer {
	var list, leaving []warm.Peer
	for _, id := range f.links.Peers() {
		conn, ok := f.links.Conn(id)
		if !ok {
			continue
		}
		switch f.of(id) {
		case pb.Ability_ABILITY_UNSPECIFIED, pb.Ability_ABILITY_UNABLE:
		case pb.Ability_ABILITY_ABLE:
			list = append(list, warm.Peer{ID: id, Conn: conn})
		case pb.Ability_ABILITY_LEAVING:
			leaving = append(leaving, warm.Peer{ID: id, Conn: conn})
		}
	}
	return append(list, leaving...)
}
