package quota_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/peers/grants"
	"github.com/kvpilot/kvpilot/server/route/quota"
)

// roundTrip is that between two routers.
const roundTrip = time.Millisecond

// net joins the routers of a fleet in virtual time.
type net struct {
	t  *testing.T
	mu sync.Mutex
	// routers are the living ones by id, cut the pairs that do not reach each other, down the pairs without a link.
	routers map[string]*node // guarded by mu
	cut     map[[2]string]bool
	deaf    string               // the router that no call reaches, guarded by mu
	dead    map[string]time.Time // when they died, guarded by mu
	calls   int                  // guarded by mu
}

// node is one router.
type node struct {
	id      string
	net     *net
	limiter *quota.Limiter
	conns   map[*node]*conn
	grants  *grants.Grants
	fitness grants.Fitness // guarded by net.mu
	stop    context.CancelFunc
	done    chan struct{}
}

// conn is the connection of two routers.
type conn struct{ from, to *node }

var errCut = errors.New("cut")

func (c *conn) Invoke(ctx context.Context, _ string, in, out any, _ ...grpc.CallOption) error {
	half := func() error {
		n := c.from.net
		n.mu.Lock()
		n.calls++
		cut := n.cut[pair(c.from.id, c.to.id)] || n.deaf == c.to.id
		alive := n.routers[c.to.id] == c.to && n.routers[c.from.id] == c.from
		n.mu.Unlock()
		switch {
		case !alive:
			return errCut
		case cut:
			<-ctx.Done()
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(roundTrip / 2):
			return nil
		}
	}
	if err := half(); err != nil {
		return err
	}
	raw, err := proto.Marshal(in.(proto.Message))
	if err != nil {
		return err
	}
	arrived := &pb.ShareLimitsRequest{}
	if err := proto.Unmarshal(raw, arrived); err != nil {
		return err
	}
	answer, err := c.to.grants.ShareLimits(ctx, c.from.id, arrived)
	if err != nil {
		return err
	}
	if err := half(); err != nil {
		return err
	}
	proto.Merge(out.(proto.Message), answer)
	return nil
}

func (*conn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errCut
}

func pair(a, b string) [2]string { return [2]string{min(a, b), max(a, b)} }

// newNet starts n routers with the same settings.
func newNet(t *testing.T, n int, c quota.Config) *net {
	t.Helper()
	all := &net{t: t, routers: map[string]*node{}, cut: map[[2]string]bool{}, dead: map[string]time.Time{}}
	for i := range n {
		all.add(fmt.Sprintf("0000000%d", i), c)
	}
	time.Sleep(6 * time.Second)
	return all
}

// add starts a router.
func (n *net) add(id string, c quota.Config) *node {
	r := &node{id: id, net: n, limiter: quota.New(c, quota.Params{}), done: make(chan struct{})}
	r.conns = map[*node]*conn{}
	r.grants = grants.New(grants.Params{Self: id, Routers: r, Accounts: r.limiter, Patience: 50 * time.Millisecond})
	r.limiter.Join(r.grants)
	n.mu.Lock()
	n.routers[id] = r
	n.mu.Unlock()
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() {
		defer close(r.done)
		_ = r.grants.Run(ctx)
	}()
	return r
}

// LimitFleet is the routers that are not cut off, and those seen in the last minute.
func (r *node) LimitFleet() grants.Fleet {
	r.net.mu.Lock()
	defer r.net.mu.Unlock()
	var f grants.Fleet
	for _, o := range r.net.routers {
		f.Seen++
		if o == r {
			continue
		}
		if r.conns[o] == nil {
			r.conns[o] = &conn{r, o}
		}
		f.Peers = append(f.Peers, grants.Peer{ID: o.id, Conn: r.conns[o]})
	}
	for _, at := range r.net.dead {
		if time.Since(at) < time.Minute {
			f.Seen++
		}
	}
	return f
}

func (r *node) Fitness(id string) grants.Fitness {
	r.net.mu.Lock()
	defer r.net.mu.Unlock()
	if o := r.net.routers[id]; o != nil {
		return o.fitness
	}
	return grants.Leaving
}

// remove ends a router: without a word, or after it has left.
func (n *net) remove(r *node, killed bool) {
	n.mu.Lock()
	delete(n.routers, r.id)
	if killed {
		n.dead[r.id] = time.Now()
	}
	n.mu.Unlock()
	r.stop()
	<-r.done
}

// close ends all routers.
func (n *net) close() {
	for _, r := range n.list() {
		n.remove(r, false)
	}
}

func (n *net) list() []*node {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []*node
	for i := range 10 {
		if r := n.routers[fmt.Sprintf("0000000%d", i)]; r != nil {
			list = append(list, r)
		}
	}
	return list
}

// owner is the router that owns a tenant's account, as the first one sees it.
func (n *net) owner(tenant string) *node {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.routers {
		return n.routers[r.grants.View().Owner(tenant)]
	}
	return nil
}

// split cuts a router off from all others.
func (n *net) split(id string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for other := range n.routers {
		n.cut[pair(id, other)] = cut
	}
}

func within(t *testing.T, what string, got, want, part float64) {
	t.Helper()
	t.Logf("%s: %.0f of %.0f, %+.1f %%", what, got, want, 100*(got/want-1))
	if math.Abs(got/want-1) > part {
		t.Errorf("%s: %.0f, want %.0f within %.0f %%", what, got, want, 100*part)
	}
}

// take is one request at a router, which lasts until the returned function is called with what it took; nil when it is refused.
func take(r *node, tenant string, tokens int) (func(quota.Usage), *quota.Refusal) {
	g := &quota.Grant{}
	if refusal := r.limiter.Admit(g, tenant); refusal != nil {
		return nil, refusal
	}
	if refusal := r.limiter.Book(g, quota.Ask{Prompt: tokens, Reserve: true}); refusal != nil {
		r.limiter.Settle(g, quota.Usage{})
		return nil, refusal
	}
	return func(u quota.Usage) { r.limiter.Settle(g, u) }, nil
}
