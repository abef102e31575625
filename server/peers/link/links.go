package link

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	pb "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/peers/identity"
	"github.com/kvpilot/kvpilot/server/peers/members"
	"github.com/kvpilot/kvpilot/server/peers/refusals"
)

const (
	// introduction bounds the time until both ends have said their ids.
	introduction = 5 * time.Second
	// maxMessage bounds a message of the contract, maxStreams the calls of one connection.
	maxMessage = 16 << 20
	maxStreams = 256
	// window is how much a peer may send ahead of the reader.
	window = 1 << 20

	// A server pings a silent connection after serverPing and closes it after answerPing more. A client, which grpc-go lets ping
	// less often, notices a dead path because its answers to those pings are not acknowledged within answerPing.
	serverPing = time.Second
	clientPing = 10 * time.Second
	answerPing = 2 * time.Second
)

// Frontend is the half of this router that asks. Its methods are called in order for one peer, and must not block.
type Frontend interface {
	// Up reports that the peer can be asked; it has introduced itself with this ability.
	Up(id string, ability pb.Ability)
	// Down reports that it cannot any more. Events that were sent and not answered may be lost.
	Down(id string)
	// Reply takes a reply of the peer.
	Reply(from string, reply *pb.DeciderReply)
}

// Decider is the half of this router that is asked. Its methods are called in order for one peer, and must not block.
type Decider interface {
	Up(id string)
	Down(id string)
	Event(from string, event *pb.FrontendEvent)
}

// Able is how fit this router is to decide now.
type Able interface{ Ability() pb.Ability }

// Params has the arguments of New.
type Params struct {
	// ID and Name are this router's. Name may change until Run.
	ID, Name string
	// WireMajor replaces members', in tests.
	WireMajor uint32
	Identity  *identity.Identity
	Refused   *refusals.Log
	Able      Able
	Frontend  Frontend
	Decider   Decider
	// Index, Facts and Limits serve the contract's other services; nil: not served.
	Index  Index
	Facts  Facts
	Limits Limits
	Scope  scope.Scope
}

// Links connects this router with the others.
type Links struct {
	pb.UnimplementedDecideServiceServer
	params  Params
	metrics *metrics
	rules   protovalidate.Validator
	// services are the arguments of Offer.
	services Services
	running  sync.WaitGroup // the goroutines of outlets and inlets

	mu sync.Mutex
	// begin runs an outlet on a goroutine of its own, until it is cancelled or Run ends. Guarded by mu; nil unless Run runs.
	begin   func(*outlet) context.CancelFunc
	members []members.Member   // guarded by mu
	outlets map[string]*outlet // guarded by mu: by the peer's id
	inlets  map[string]*inlet  // guarded by mu: by the peer's id
}

// New makes Links. It opens nothing.
func New(p Params) (*Links, error) {
	if p.WireMajor == 0 {
		p.WireMajor = members.WireMajor
	}
	rules, err := protovalidate.New(protovalidate.WithMessages(&pb.DecideRequest{}, &pb.DecideResponse{}, &pb.PullIndexRequest{}, &pb.ShareFactsRequest{}, &pb.ShareLimitsRequest{}))
	if err != nil {
		return nil, err
	}
	l := &Links{params: p, rules: rules, outlets: map[string]*outlet{}, inlets: map[string]*inlet{}}
	l.metrics = newMetrics(p.Scope.Meters(), l)
	return l, nil
}

// Offer adds services that the other routers may call. It must be called before Run. Their calls come from members only.
func (l *Links) Offer(s Services) { l.services = s }

// Run serves the routers' services on listener, whose owner bounds its connections, and keeps the links to the members, until ctx ends. It closes listener.
func (l *Links) Run(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer(
		grpc.Creds(l.params.Identity.Server(l.params.Refused)), grpc.ForceServerCodecV2(l.metrics.codec()), grpc.WaitForHandlers(true),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage), grpc.MaxConcurrentStreams(maxStreams),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window), grpc.ConnectionTimeout(introduction),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: serverPing, Timeout: answerPing}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: clientPing / 2, PermitWithoutStream: true}),
		grpc.UnknownServiceHandler(l.refuseUnknown),
	)
	l.register(server)
	within, cancel := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	l.mu.Lock()
	l.begin = func(o *outlet) context.CancelFunc {
		ctx, cancel := context.WithCancel(within)
		l.running.Go(func() {
			defer cancel()
			o.run(ctx)
		})
		return cancel
	}
	l.reconcileLocked()
	l.mu.Unlock()

	var err error
	select {
	case <-ctx.Done():
	case err = <-served:
	}
	l.mu.Lock()
	l.begin = nil
	l.mu.Unlock()
	cancel()
	server.Stop()
	l.running.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.outlets)
	return err
}

// SetMembers says which other routers the fleet has.
func (l *Links) SetMembers(list []members.Member) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.members = slices.Clone(list)
	l.reconcileLocked()
}

// reconcileLocked dials members that are alive and hangs up on members that are not listed any more. A member that is listed as dead
// keeps the link that it has: it may be the gossip that fails.
func (l *Links) reconcileLocked() {
	if l.begin == nil {
		return
	}
	wanted := map[string]members.Member{}
	for _, m := range l.members {
		if m.State != members.Stranger && m.ID != l.params.ID {
			wanted[m.ID] = m
		}
	}
	for id, o := range l.outlets {
		if m, want := wanted[id]; !want || m.Address != o.member.Address {
			o.cancel()
			delete(l.outlets, id)
		}
	}
	for id, m := range wanted {
		if l.outlets[id] != nil || m.State != members.Alive {
			continue
		}
		o, err := l.newOutlet(m)
		if err != nil {
			l.params.Scope.Log().Error("a router cannot be dialed", "id", id, "address", m.Address, "error", err)
			continue
		}
		l.outlets[id], o.cancel = o, l.begin(o)
	}
}

// SendEvent sends an event of this frontend to a peer's decider, unless their link is down. event must not be changed any more.
func (l *Links) SendEvent(to string, event *pb.FrontendEvent) {
	l.mu.Lock()
	var q *queue[*pb.FrontendEvent]
	if o := l.outlets[to]; o != nil {
		q = o.waiting
	}
	l.mu.Unlock()
	if q != nil && !q.push(event) {
		l.params.Refused.Refuse(refusals.Limit, to, "too much waits to be sent to a router: its link is closed", "half", frontendHalf)
	}
}

// SendReply sends a reply of this decider to a peer's frontend, unless their link is down. reply must not be changed any more.
func (l *Links) SendReply(to string, reply *pb.DeciderReply) {
	l.mu.Lock()
	i := l.inlets[to]
	l.mu.Unlock()
	if i != nil && !i.waiting.push(reply) {
		l.params.Refused.Refuse(refusals.Limit, to, "too much waits to be sent to a router: its link is closed", "half", deciderHalf)
	}
}

// Conn is the connection for calls to a peer; ok is false unless the link to it is up.
func (l *Links) Conn(id string) (conn *grpc.ClientConn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.outlets[id]
	if o == nil || o.waiting == nil {
		return nil, false
	}
	return o.conn, true
}

// Peers lists the ids of the routers to which the link is up.
func (l *Links) Peers() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]string, 0, len(l.outlets))
	for id, o := range l.outlets {
		if o.waiting != nil {
			list = append(list, id)
		}
	}
	slices.Sort(list)
	return list
}
