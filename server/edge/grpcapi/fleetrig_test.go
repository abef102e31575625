package grpcapi_test

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/peers/forward"
	"github.com/kvpilot/kvpilot/server/peers/members"
)

// The routers of the test fleet.
const (
	idA = "aaaaaaaa"
	idB = "bbbbbbbb"
	idC = "cccccccc"
)

// owned answers reports about the one reservation that it has.
type owned struct {
	tenant, id string

	mu    sync.Mutex
	calls []string // guarded by mu
}

func (o *owned) note(call string, key load.Key) load.Outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	if key.Tenant != o.tenant || key.ID != o.id {
		return load.Unknown
	}
	o.calls = append(o.calls, call)
	return load.Applied
}

func (o *owned) PrefillCompleted(key load.Key) load.Outcome { return o.note("prefill", key) }

func (o *owned) ReportProgress(key load.Key, _ int) load.Outcome { return o.note("progress", key) }

func (o *owned) Renew(key load.Key) load.Outcome { return o.note("renew", key) }

func (o *owned) Finish(key load.Key, r chooser.Result) load.Outcome {
	return o.note("end "+r.End.String(), key)
}

func (o *owned) seen() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.calls)
}

// node is a router of a fleet in memory: as clients see it, and as its peers do.
type node struct {
	*rig
	life   *owned
	inward *grpc.ClientConn
}

// fleetRig is three routers. Its functions may be replaced before the first call.
type fleetRig struct {
	nodes map[string]*node
	state func(id string) members.State
	up    func(id string) bool
	// decider decides for all models.
	decider string
}

func newFleetRig(t *testing.T, conf func(id string) grpcapi.Config, with ...func(id string, p *grpcapi.Params)) *fleetRig {
	t.Helper()
	f := &fleetRig{nodes: map[string]*node{}, decider: idA, state: func(string) members.State { return members.Alive }, up: func(string) bool { return true }}
	for _, id := range []string{idA, idB, idC} {
		n := &node{life: &owned{tenant: "team", id: id + "0001"}}
		peers := forward.New(place{f, id})
		n.rig = newRig(t, conf(id), func(p *grpcapi.Params) {
			p.Lifecycle, p.Peers, p.Version = n.life, peers, "v-"+id
			for _, change := range with {
				change(id, p)
			}
		})
		n.inward = serveInward(t, n.api)
		f.nodes[id] = n
	}
	return f
}

// place is a router's place in a fleetRig.
type place struct {
	f  *fleetRig
	id string
}

func (p place) member(id string) members.Member {
	return members.Member{ID: id, Name: "router-" + id[:1], Address: id, State: p.f.state(id)}
}

func (p place) Self() members.Member { return p.member(p.id) }

func (p place) Others() (list []members.Member) {
	for _, other := range []string{idA, idB, idC} {
		if other != p.id {
			list = append(list, p.member(other))
		}
	}
	return list
}

func (p place) Conn(other string) (grpc.ClientConnInterface, bool) {
	if p.f.nodes[other] == nil || !p.f.up(other) {
		return nil, false
	}
	return p.f.nodes[other].inward, true
}

func (p place) Decider(string) string { return p.f.decider }

func (p place) Requests() int { return int(p.id[0] - 'a' + 1) }

func (p place) Able() bool { return p.id != idC }

// serveInward is the listener of the peers.
func serveInward(t *testing.T, api *grpcapi.API) *grpc.ClientConn {
	t.Helper()
	server := grpc.NewServer()
	api.RegisterForPeers(server)
	lis := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		<-served
	})
	return conn
}

// keyed has two tenants and an operator.
func keyed(string) grpcapi.Config {
	c := grpcapi.DefaultConfig()
	for _, k := range []struct{ tenant, role string }{{"team", "route"}, {"rivals", "route"}, {"ops", "observe"}} {
		c.Keys = append(c.Keys, grpcapi.Key{Name: k.tenant, Key: secret.New(k.tenant + "-key-0001"), Roles: []string{k.role}})
	}
	return c
}

func open(string) grpcapi.Config { return grpcapi.DefaultConfig() }

func as(t *testing.T, tenant string) context.Context {
	t.Helper()
	return metadata.AppendToOutgoingContext(t.Context(), "x-api-key", tenant+"-key-0001")
}

func (f *fleetRig) routing(id string) kvpilotv1.RoutingServiceClient {
	return kvpilotv1.NewRoutingServiceClient(f.nodes[id].socket)
}

func reasonOf(err error) apierror.Reason {
	if err == nil {
		return apierror.Unspecified
	}
	return apierror.From(err).Reason
}
