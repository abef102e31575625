package grants

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	pb "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

const (
	// lookEvery is the time between looks at which routers there are, reportEvery that between reports, shareEvery that between copies of
	// accounts for the time after their owner.
	lookEvery   = 100 * time.Millisecond
	reportEvery = 250 * time.Millisecond
	shareEvery  = 500 * time.Millisecond
	// callTimeout bounds a call. A router that answers none for silence is not reached any more.
	callTimeout = 500 * time.Millisecond
	silence     = time.Second
	// longestPatience bounds the wait of a request.
	longestPatience = time.Second
	// hurryPause is the time between reports that hurry.
	hurryPause = 2 * time.Millisecond
)

// Peer is another router that shares limits and to which there is a connection. A new connection is a new peer.
type Peer struct {
	ID   string
	Conn grpc.ClientConnInterface
}

// Fleet is which routers there are.
type Fleet struct {
	// Peers are the peers with a connection.
	Peers []Peer
	// Seen counts the routers that were seen lately, this one among them; Strangers the routers among them with another wire version.
	Seen, Strangers int
}

// Routers is this router's view of its fleet.
type Routers interface {
	// LimitFleet is which routers there are now.
	LimitFleet() Fleet
	// Fitness is how fit one of them is to own accounts.
	Fitness(id string) Fitness
}

// Params has the arguments of New.
type Params struct {
	// Self is this router's id.
	Self     string
	Routers  Routers
	Accounts Accounts
	// Patience is how long a request waits for an owner, at most a second.
	Patience time.Duration
	Scope    scope.Scope
}

// Grants shares the limits with the other routers.
type Grants struct {
	params    Params
	metrics   *metrics
	view      atomic.Pointer[View]
	strangers atomic.Int64
	changed   chan struct{} // holds a token when the routers have changed
	absent    absent        // of the goroutine of Run

	mu      sync.Mutex
	senders map[string]*sender // guarded by mu
}

// New makes Grants. It opens nothing.
func New(p Params) *Grants {
	p.Patience = min(p.Patience, longestPatience)
	g := &Grants{params: p, changed: make(chan struct{}, 1), senders: map[string]*sender{}}
	g.view.Store(NewView(p.Self, []Member{{ID: p.Self}}, 1, 0))
	g.metrics = newMetrics(p.Scope.Meters(), g)
	p.Accounts.SetView(g.View())
	return g
}

// View is which routers share the limits now.
func (g *Grants) View() *View { return g.view.Load() }

// Patience is how long a request waits for an owner.
func (g *Grants) Patience() time.Duration { return g.params.Patience }

// PeersChanged has the list of routers read again at once. It does not block.
func (g *Grants) PeersChanged() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// Run reports to the owners of accounts, and sends the other routers the accounts of this one, until ctx ends. Its last report may take
// farewellTime: the links must be up until it returns.
func (g *Grants) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	look, share := time.NewTicker(lookEvery), time.NewTicker(shareEvery)
	defer look.Stop()
	defer share.Stop()
	g.look(ctx, &running)
	for {
		select {
		case <-ctx.Done():
			running.Wait()
			g.farewell()
			return nil
		case <-g.changed:
			g.look(ctx, &running)
		case <-look.C:
			g.look(ctx, &running)
		case <-share.C:
			g.share()
		}
	}
}

// look follows the routers: a sender for each, and the view of them.
func (g *Grants) look(ctx context.Context, running *sync.WaitGroup) {
	fleet, now := g.params.Routers.LimitFleet(), time.Now()
	members := []Member{{ID: g.params.Self, Fitness: g.params.Routers.Fitness(g.params.Self)}}
	g.mu.Lock()
	kept := map[string]*sender{}
	for _, p := range fleet.Peers {
		s := g.senders[p.ID]
		if s == nil || s.peer.Conn != p.Conn {
			if s != nil {
				s.stop()
			}
			s = g.start(ctx, p, running)
		}
		kept[p.ID] = s
		if s.reached(now) {
			members = append(members, Member{ID: p.ID, Fitness: g.params.Routers.Fitness(p.ID)})
		}
	}
	for id, s := range g.senders {
		if kept[id] == nil {
			s.stop()
		}
	}
	g.senders = kept
	g.mu.Unlock()
	g.strangers.Store(int64(fleet.Strangers))
	view := NewView(g.params.Self, members, fleet.Seen, g.absent.count(fleet.Seen-len(members), now))
	if view.Equal(g.View()) {
		return
	}
	g.view.Store(view)
	g.params.Accounts.SetView(view)
	g.params.Scope.Log().Info("the routers that share tenants' limits have changed", "members", view.Members(), "seen", view.Seen(), "share", view.Share())
	for _, s := range kept {
		s.hurry("")
	}
}

// settle is for how long the others are missed before the share shrinks: a router that leaves breaks its links first.
const settle = time.Second

// absent counts the routers that were seen lately and are not reached.
type absent struct {
	n       int
	growing time.Time // since when there are more than n; zero: there are not
}

// count takes the number at a time and returns the number that has lasted.
func (a *absent) count(n int, now time.Time) int {
	n = max(0, n)
	switch {
	case n <= a.n:
		a.n, a.growing = n, time.Time{}
	case a.growing.IsZero():
		a.growing = now
	case now.Sub(a.growing) >= settle:
		a.n, a.growing = n, time.Time{}
	}
	return a.n
}

// start makes the sender to a peer. The caller holds mu.
func (g *Grants) start(ctx context.Context, p Peer, running *sync.WaitGroup) *sender {
	ctx, stop := context.WithCancel(ctx)
	s := &sender{grants: g, peer: p, client: pb.NewLimitsServiceClient(p.Conn), stop: stop, wake: make(chan struct{}, 1), urgent: map[string]struct{}{}, called: time.Now()}
	s.copy(g.params.Accounts.Changed(true))
	s.hurry("")
	running.Go(func() { s.run(ctx) })
	return s
}

// farewellTime bounds the last report.
const farewellTime = 500 * time.Millisecond

// farewell sends the accounts as they are now: the next owners begin with them.
func (g *Grants) farewell() {
	g.share()
	ctx, cancel := context.WithTimeout(context.Background(), farewellTime)
	defer cancel()
	g.mu.Lock()
	senders := slices.Collect(maps.Values(g.senders))
	g.mu.Unlock()
	var running sync.WaitGroup
	for _, s := range senders {
		if s.wanted() {
			running.Go(func() { s.exchange(ctx, nil) })
		}
	}
	running.Wait()
}

// share gives all senders the accounts that have changed.
func (g *Grants) share() {
	if !g.params.Accounts.Active() {
		return
	}
	list := g.params.Accounts.Changed(false)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.senders {
		s.copy(list)
	}
}

func (g *Grants) sender(id string) *sender {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.senders[id]
}

var errUnreached = errors.New("the router that owns the account is not reached")

// Ask sends a report to an owner and returns its answer.
func (g *Grants) Ask(owner string, r Report) (Grant, error) {
	s := g.sender(owner)
	if s == nil || !s.reached(time.Now()) {
		g.metrics.Reports.Add(outcomeFailed)
		return Grant{}, errUnreached
	}
	ctx, cancel := context.WithTimeout(context.Background(), g.params.Patience)
	defer cancel()
	list, err := s.call(ctx, []Report{r}, nil)
	if err != nil {
		return Grant{}, err
	}
	return list[0], nil
}

// Hurry has the report about a tenant sent to its owner at once. It does not block.
func (g *Grants) Hurry(owner, tenant string) {
	if s := g.sender(owner); s != nil {
		s.hurry(tenant)
	}
}

// ShareLimits is the RPC of the router with the id from.
func (g *Grants) ShareLimits(_ context.Context, from string, in *pb.ShareLimitsRequest) (*pb.ShareLimitsResponse, error) {
	if s := g.sender(from); s != nil {
		s.arrived(time.Now())
	}
	accounts := make([]Account, 0, len(in.GetAccounts()))
	for _, a := range in.GetAccounts() {
		accounts = append(accounts, fromAccount(a))
	}
	g.params.Accounts.Witness(from, accounts)
	out := &pb.ShareLimitsResponse{}
	for _, r := range in.GetReports() {
		out.Grants = append(out.Grants, grant(g.params.Accounts.Lend(from, fromReport(r))))
	}
	return out, nil
}
