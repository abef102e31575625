package grpcapi_test

import (
	"context"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/internal/reports"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/peers/forward"
	"github.com/kvpilot/kvpilot/server/peers/members"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
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

func (o *owned) PrefillCompleted(key load.Key) load.Outcome      { return o.note("prefill", key) }
func (o *owned) ReportProgress(key load.Key, _ int) load.Outcome { return o.note("progress", key) }
func (o *owned) Renew(key load.Key) load.Outcome                 { return o.note("renew", key) }
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
func (p place) Requests() int         { return int(p.id[0] - 'a' + 1) }
func (p place) Able() bool            { return p.id != idC }

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

func TestAnyRouterTakesAReport(t *testing.T) {
	f := newFleetRig(t, keyed)
	ctx, at, id := as(t, "team"), f.routing(idA), idB+"0001"
	for _, send := range []func() (*kvpilotv1.Reservation, error){
		func() (*kvpilotv1.Reservation, error) {
			return at.ReportReservation(ctx, reports.Renew(id))
		},
		func() (*kvpilotv1.Reservation, error) {
			return at.ReportReservation(ctx, reports.FirstToken(id))
		},
		func() (*kvpilotv1.Reservation, error) {
			return at.ReportReservation(ctx, reports.Progress(id, 3))
		},
		func() (*kvpilotv1.Reservation, error) {
			return at.ReportReservation(ctx, reports.Release(id, kvpilotv1.ReleaseReason_RELEASE_REASON_FAILED))
		},
	} {
		if out, err := send(); err != nil || out.GetReservationId() != id || out.GetEffect() != kvpilotv1.Effect_EFFECT_APPLIED {
			t.Errorf("%v, %v", out, err)
		}
	}
	if got := strings.Join(f.nodes[idB].life.seen(), ", "); got != "renew, prefill, progress, end failed" {
		t.Errorf("the owner saw %q", got)
	}
	if len(f.nodes[idA].life.seen())+len(f.nodes[idC].life.seen()) > 0 {
		t.Error("other routers saw reports")
	}
}

func TestAReservationOfAnotherTenantIsUnknownEverywhere(t *testing.T) {
	f := newFleetRig(t, keyed)
	for _, at := range []string{idA, idB} {
		for _, who := range []string{"rivals"} {
			_, err := f.routing(at).ReportReservation(as(t, who), reports.Completed(idB+"0001"))
			if reasonOf(err) != apierror.ReservationNotFound {
				t.Errorf("%s at %s: %v", who, at, err)
			}
		}
	}
	if len(f.nodes[idB].life.seen()) > 0 {
		t.Error("the owner took a report of another tenant")
	}
}

func TestReservationsWithoutALivingOwner(t *testing.T) {
	f := newFleetRig(t, keyed)
	renew := func(id string) apierror.Reason {
		_, err := f.routing(idA).ReportReservation(as(t, "team"), reports.Renew(id))
		return reasonOf(err)
	}
	for _, id := range []string{"dddddddd0001", "short", "BBBBBBBB0001", idB} {
		if got := renew(id); got != apierror.ReservationNotFound {
			t.Errorf("%s: %s", id, got)
		}
	}
	f.up = func(id string) bool { return id != idB }
	if got := renew(idB + "0001"); got != apierror.RouterUnreachable {
		t.Errorf("the link is down: %s", got)
	}
	f.state = func(string) members.State { return members.Dead }
	if got := renew(idB + "0001"); got != apierror.ReservationNotFound {
		t.Errorf("the owner is gone: %s", got)
	}
	f.state, f.up = func(string) members.State { return members.Alive }, func(string) bool { return true }
	_ = f.nodes[idB].inward.Close()
	if got := renew(idB + "0001"); got != apierror.Cancelled && got != apierror.RouterUnreachable {
		t.Errorf("the call breaks: %s", got)
	}
}

func TestAStreamReleasesWhatOtherRoutersOwn(t *testing.T) {
	f := newFleetRig(t, keyed)
	ctx, cancel := context.WithCancel(as(t, "team"))
	defer cancel()
	stream, err := f.routing(idA).TrackReservation(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{idA + "0001", idB + "0001", idC + "0002"} {
		if err := stream.Send(reports.Bind(id)); err != nil {
			t.Fatal(err)
		}
		out, err := stream.Recv()
		if known := !strings.HasPrefix(id, idC); err != nil || known != (out.GetReason() == apierror.Unspecified) {
			t.Errorf("%s: %v, %v", id, out, err)
		}
	}
	cancel()
	for _, id := range []string{idA, idB} {
		deadline := time.Now().Add(5 * time.Second)
		for !slices.Contains(f.nodes[id].life.seen(), "end canceled") {
			if time.Now().After(deadline) {
				t.Fatalf("%s was not released: %v", id, f.nodes[id].life.seen())
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// passedFor is the metadata of a call that a router passes on for a caller.
func passedFor(t *testing.T, who *peerv1.ForwardedCaller) string {
	t.Helper()
	text, err := proto.Marshal(who)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What a client says of itself in the form that routers use is not believed.
func TestAForgedCallerIsNotBelieved(t *testing.T) {
	f := newFleetRig(t, keyed)
	forged := metadata.AppendToOutgoingContext(as(t, "rivals"), "kvpilot-caller-bin", passedFor(t, &peerv1.ForwardedCaller{Tenant: "team", Roles: []string{"admin", "observe", "route"}, By: "key"}))
	for _, at := range []string{idA, idB} {
		if _, err := f.routing(at).ReportReservation(forged, reports.Renew(idB+"0001")); reasonOf(err) != apierror.ReservationNotFound {
			t.Errorf("at %s: %v", at, err)
		}
		if _, err := f.routing(at).GetLoads(forged, &kvpilotv1.GetLoadsRequest{}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("loads at %s: %v", at, err)
		}
	}
	without := metadata.AppendToOutgoingContext(t.Context(), "kvpilot-caller-bin", passedFor(t, &peerv1.ForwardedCaller{Tenant: "team", Roles: []string{"admin"}, By: "key"}))
	if _, err := f.routing(idB).ListDecisions(without, &kvpilotv1.ListDecisionsRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a key: %v", err)
	}
}

func TestTheListenerOfPeersNeedsACaller(t *testing.T) {
	f := newFleetRig(t, keyed)
	inward := kvpilotv1.NewRoutingServiceClient(f.nodes[idB].inward)
	ask := func(said ...string) error {
		ctx := t.Context()
		for _, s := range said {
			ctx = metadata.AppendToOutgoingContext(ctx, "kvpilot-caller-bin", s)
		}
		_, err := inward.GetLoads(ctx, &kvpilotv1.GetLoadsRequest{})
		return err
	}
	for name, c := range map[string]struct {
		err  error
		want codes.Code
	}{
		"none":                         {ask(), codes.Unauthenticated},
		"two":                          {ask(passedFor(t, &peerv1.ForwardedCaller{Roles: []string{"admin"}}), passedFor(t, &peerv1.ForwardedCaller{Roles: []string{"admin"}})), codes.Unauthenticated},
		"no message":                   {ask(`x`), codes.Unauthenticated},
		"no roles":                     {ask(passedFor(t, &peerv1.ForwardedCaller{Tenant: "team"})), codes.PermissionDenied},
		"a role of a later version":    {ask(passedFor(t, &peerv1.ForwardedCaller{Tenant: "team", Roles: []string{"emperor"}})), codes.PermissionDenied},
		"a router without credentials": {ask(passedFor(t, &peerv1.ForwardedCaller{Roles: []string{"infer", "route", "observe", "admin"}, By: "open"})), codes.PermissionDenied},
		"an operator":                  {ask(passedFor(t, &peerv1.ForwardedCaller{Tenant: "ops", Roles: []string{"observe"}, By: "key"})), codes.OK},
		"a caller without the role":    {ask(passedFor(t, &peerv1.ForwardedCaller{Tenant: "ops", Roles: []string{"route"}, By: "key"})), codes.PermissionDenied},
	} {
		if status.Code(c.err) != c.want {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	watch, err := inward.WatchDecisions(t.Context(), &kvpilotv1.WatchDecisionsRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("a stream without a caller: %v", err)
	}
}

// A call that was passed on is answered where it arrives, whatever it is about.
func TestAPassedCallIsNotPassedOn(t *testing.T) {
	f := newFleetRig(t, keyed)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "kvpilot-caller-bin", passedFor(t, &peerv1.ForwardedCaller{Tenant: "team", Roles: []string{"admin"}, By: "key"}))
	inward := kvpilotv1.NewRoutingServiceClient(f.nodes[idA].inward)
	if _, err := inward.ReportReservation(ctx, reports.Renew(idB+"0001")); reasonOf(err) != apierror.ReservationNotFound {
		t.Errorf("renew: %v", err)
	}
	record(f.nodes[idB], &decision.Decision{Request: decision.Request{ID: idB + "0001", Tenant: "team", Model: "m"}, At: time.Now()})
	if _, err := inward.ExplainDecision(ctx, explain(idB+"0001")); reasonOf(err) != apierror.DecisionNotFound {
		t.Errorf("explain: %v", err)
	}
	if out, err := inward.ListDecisions(ctx, &kvpilotv1.ListDecisionsRequest{}); err != nil || len(out.GetDecisions()) != 0 {
		t.Errorf("list: %v, %v", out, err)
	}
	if out, err := kvpilotv1.NewRouterServiceClient(f.nodes[idA].inward).ListRouters(ctx, &kvpilotv1.ListRoutersRequest{}); err != nil || len(out.GetRouters()) != 1 {
		t.Errorf("routers: %v, %v", out, err)
	}
}

func record(n *node, d *decision.Decision) {
	if d.Candidates == nil {
		d.Candidates = []decision.Candidate{{RankID: decision.RankID{Replica: "r0"}}}
	}
	n.decisions.Add(d)
}

func explain(id string) *kvpilotv1.ExplainDecisionRequest {
	return &kvpilotv1.ExplainDecisionRequest{Key: &kvpilotv1.ExplainDecisionRequest_DecisionId{DecisionId: id}}
}

// decided puts a decision that A made for B on both routers' logs, and its outcome on the log of B.
func (f *fleetRig) decided(id string, at time.Time) {
	record(f.nodes[idB], &decision.Decision{
		Request:  decision.Request{ID: id, RequestID: "req-" + id, Tenant: "team", Model: "m", TraceID: "t"},
		At:       at,
		Deciders: decision.Deciders{DecidedBy: idA},
		Ranks:    decision.Ranks{Others: 1},
	})
	record(f.nodes[idA], &decision.Decision{
		Request:  decision.Request{ID: id, RequestID: "req-" + id, Tenant: "team", Model: "m"},
		At:       at.Add(time.Hour),
		Deciders: decision.Deciders{AskedBy: idB},
		Margin:   3,
		Ranks:    decision.Ranks{Candidates: []decision.Candidate{{RankID: decision.RankID{Replica: "r1"}}, {RankID: decision.RankID{Replica: "r0"}}}, Chosen: 1},
	})
	f.nodes[idB].decisions.Finish(decision.Outcome{ID: id, End: decision.EndFailed, Replica: "r0"})
	f.nodes[idA].decisions.Finish(decision.Outcome{ID: id, End: decision.EndMoved, Replica: "r0"})
}

func TestAnyRouterExplainsADecision(t *testing.T) {
	f := newFleetRig(t, keyed)
	at := time.Now().Add(-time.Minute).Round(0)
	f.decided(idB+"0007", at)
	byRequest := &kvpilotv1.ExplainDecisionRequest{Key: &kvpilotv1.ExplainDecisionRequest_RequestId{RequestId: "req-" + idB + "0007"}}
	for _, ask := range []*kvpilotv1.ExplainDecisionRequest{explain(idB + "0007"), byRequest} {
		for _, router := range []string{idA, idB, idC} {
			for _, who := range []string{"team", "ops"} {
				out, err := f.routing(router).ExplainDecision(as(t, who), ask)
				if err != nil || len(out.GetDecisions()) != 1 {
					t.Fatalf("%s at %s: %v, %v", who, router, out, err)
				}
				d := out.GetDecisions()[0]
				if len(d.GetCandidates()) != 2 || d.GetMargin() == 0 || d.GetOutcome().GetEnd() != kvpilotv1.End_END_FAILED || d.GetDecidedBy() != idA || d.GetAskedBy() != idB ||
					d.GetTraceId() != "t" || !d.GetTime().AsTime().Equal(at) || d.GetOthers() != 0 {
					t.Errorf("%s at %s: %v", who, router, d)
				}
			}
			if _, err := f.routing(router).ExplainDecision(as(t, "rivals"), ask); reasonOf(err) != apierror.DecisionNotFound {
				t.Errorf("another tenant at %s: %v", router, err)
			}
		}
	}
	f.state, f.up = func(string) members.State { return members.Dead }, func(string) bool { return false }
	if out, err := f.routing(idA).ExplainDecision(as(t, "team"), explain(idB+"0007")); err != nil || out.GetDecisions()[0].GetAskedBy() != idB {
		t.Errorf("the owner is gone: %v, %v", out, err)
	}
}

func TestAnyRouterListsAllDecisions(t *testing.T) {
	f := newFleetRig(t, keyed)
	began := time.Now().Add(-time.Hour)
	record(f.nodes[idC], &decision.Decision{Request: decision.Request{ID: idC + "0001", Tenant: "rivals", Model: "m"}, At: began})
	f.decided(idB+"0002", began.Add(time.Second))
	record(f.nodes[idA], &decision.Decision{Request: decision.Request{ID: idA + "0003", Tenant: "team", Model: "m"}, At: began.Add(2 * time.Second)})
	record(f.nodes[idC], &decision.Decision{Request: decision.Request{ID: idC + "0004", Tenant: "team", Model: "m"}, At: began.Add(3 * time.Second)})
	list := func(at, who string, limit uint32) string {
		t.Helper()
		out, err := f.routing(at).ListDecisions(as(t, who), &kvpilotv1.ListDecisionsRequest{PageSize: limit})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, d := range out.GetDecisions() {
			ids = append(ids, d.GetDecisionId()[7:])
		}
		return strings.Join(append(ids, out.GetUnanswered()...), " ")
	}
	for _, router := range []string{idA, idB, idC} {
		if got := list(router, "ops", 0); got != "c0004 a0003 b0002 c0001" {
			t.Errorf("at %s: %s", router, got)
		}
		if got := list(router, "team", 2); got != "c0004 a0003" {
			t.Errorf("two at %s: %s", router, got)
		}
		if got := list(router, "rivals", 0); got != "c0001" {
			t.Errorf("another tenant at %s: %s", router, got)
		}
	}
	f.up = func(id string) bool { return id != idC }
	if got := list(idA, "team", 0); got != "a0003 b0002 router-c" {
		t.Errorf("without a link: %s", got)
	}
}

// A router that does not answer costs the bound, and is named.
func TestASilentRouterIsNamed(t *testing.T) {
	f := newFleetRig(t, open)
	silent := bufconn.Listen(1 << 10)
	defer silent.Close()
	conn, err := grpc.NewClient("passthrough:x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return silent.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	f.nodes[idC].inward = conn
	record(f.nodes[idB], &decision.Decision{Request: decision.Request{ID: idB + "0001", Model: "m"}, At: time.Now()})
	began := time.Now()
	out, err := f.routing(idA).ListDecisions(t.Context(), &kvpilotv1.ListDecisionsRequest{})
	if took := time.Since(began); err != nil || len(out.GetDecisions()) != 1 || !slices.Equal(out.GetUnanswered(), []string{"router-c"}) || took > 2*time.Second {
		t.Errorf("%v after %s: %v", err, took, out)
	}
	list, err := kvpilotv1.NewRouterServiceClient(f.nodes[idA].socket).ListRouters(t.Context(), &kvpilotv1.ListRoutersRequest{})
	if err != nil || list.GetRouters()[2].GetReport() != nil || list.GetRouters()[1].GetReport() == nil {
		t.Errorf("%v, %v", err, list)
	}
}

func TestListRouters(t *testing.T) {
	f := newFleetRig(t, keyed)
	f.up = func(id string) bool { return id != idB }
	out, err := kvpilotv1.NewRouterServiceClient(f.nodes[idA].socket).ListRouters(as(t, "ops"), &kvpilotv1.ListRoutersRequest{})
	if err != nil || len(out.GetRouters()) != 3 {
		t.Fatalf("%v, %v", out, err)
	}
	a, b, c := out.GetRouters()[0], out.GetRouters()[1], out.GetRouters()[2]
	if !a.GetSelf() || a.GetRouterId() != idA || a.GetName() != "router-a" || a.GetReport().GetRequests() != 1 || !a.GetReport().GetAble() || a.GetReport().GetVersion() != "v-"+idA {
		t.Errorf("self: %v", a)
	}
	if b.GetConnected() || b.GetReport() != nil || b.GetState() != kvpilotv1.RouterState_ROUTER_STATE_ALIVE || b.GetRouterId() != idB {
		t.Errorf("without a link: %v", b)
	}
	if !c.GetConnected() || c.GetReport().GetRequests() != 3 || c.GetReport().GetAble() || c.GetAddress() != idC {
		t.Errorf("another: %v", c)
	}
	alone := newRig(t, grpcapi.DefaultConfig())
	out, err = kvpilotv1.NewRouterServiceClient(alone.socket).ListRouters(t.Context(), &kvpilotv1.ListRoutersRequest{})
	if err != nil || len(out.GetRouters()) != 1 || !out.GetRouters()[0].GetSelf() || !out.GetRouters()[0].GetReport().GetAble() {
		t.Errorf("without a fleet: %v, %v", out, err)
	}
}

// What books nothing is answered by the decider, or here when that one is silent.
func TestTheDeciderAnswersDryRuns(t *testing.T) {
	f := newFleetRig(t, open)
	for _, n := range f.nodes {
		n.router.choose = func(*intake.Question) (*router.Answer, error) {
			return &router.Answer{Choice: &chooser.Choice{
				Replica: &replica.Replica{ID: "r0", URL: "http://h:1"},
				Decision: &decision.Decision{
					Request: decision.Request{ID: "x", Model: "m"},
					Prompt:  decision.Prompt{PromptTokens: 1},
					Ranks:   decision.Ranks{Candidates: []decision.Candidate{{RankID: decision.RankID{Replica: "r0"}}, {RankID: decision.RankID{Replica: "r1"}}}},
				},
			}}, nil
		}
	}
	asked := func() string {
		text := ""
		for _, id := range []string{idA, idB, idC} {
			for _, q := range f.nodes[id].router.questions {
				text += id[:1] + ":" + q.RequestID + " "
			}
			f.nodes[id].router.questions = nil
		}
		return strings.TrimSpace(text)
	}
	body := &kvpilotv1.ChooseReplicaRequest_Body{Body: &kvpilotv1.RequestBody{Json: []byte(`{"model":"m","prompt":"x"}`)}}
	choose := func(in *kvpilotv1.ChooseReplicaRequest) {
		t.Helper()
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", "q")
		out, err := f.routing(idB).ChooseReplica(ctx, in)
		if err != nil || out.GetReplicaId() != "r0" || in.GetExplain() && len(out.GetDecision().GetCandidates()) != 2 {
			t.Errorf("%v, %v", out, err)
		}
	}
	choose(&kvpilotv1.ChooseReplicaRequest{Model: "m", Booking: kvpilotv1.Booking_BOOKING_DRY_RUN, Explain: true})
	if got := asked(); got != "a:q" {
		t.Errorf("a dry run: %s", got)
	}
	choose(&kvpilotv1.ChooseReplicaRequest{Prompt: body, Booking: kvpilotv1.Booking_BOOKING_DRY_RUN})
	if got := asked(); got != "a:q" {
		t.Errorf("a dry run of a body: %s", got)
	}
	if out, err := f.routing(idB).ScoreOverlap(t.Context(), &kvpilotv1.ScoreOverlapRequest{Model: "m", Prompt: &kvpilotv1.ScoreOverlapRequest_Text{Text: "x"}}); err != nil || len(out.GetRanks()) != 2 {
		t.Errorf("%v, %v", out, err)
	}
	if got := asked(); !strings.HasPrefix(got, "a:") {
		t.Errorf("overlaps: %s", got)
	}
	choose(&kvpilotv1.ChooseReplicaRequest{Model: "m"})
	if got := asked(); got != "b:q" {
		t.Errorf("a booking: %s", got)
	}
	f.up = func(string) bool { return false }
	choose(&kvpilotv1.ChooseReplicaRequest{Model: "m", Booking: kvpilotv1.Booking_BOOKING_DRY_RUN})
	if got := asked(); got != "b:q" {
		t.Errorf("the decider is silent: %s", got)
	}
}

// One question with a name is answered by one router, whichever is asked; without an answer of that one, by the one that is asked.
func TestAQuestionWithANameHasOneHome(t *testing.T) {
	f := newFleetRig(t, keyed)
	asked := map[string]string{} // router by name
	for id, n := range f.nodes {
		n.router.choose = func(q *intake.Question) (*router.Answer, error) {
			asked[q.RequestID] += id
			if q.Tenant != "team" {
				t.Errorf("the tenant is %q", q.Tenant)
			}
			return answer("r-1", 0.25, 0.5), nil
		}
	}
	choose := func(at, name string, more ...func(*kvpilotv1.ChooseReplicaRequest)) {
		t.Helper()
		in := &kvpilotv1.ChooseReplicaRequest{RequestId: name}
		for _, change := range more {
			change(in)
		}
		if out, err := f.routing(at).ChooseReplica(as(t, "team"), in); err != nil || out.GetReplicaId() != "r-1" {
			t.Fatalf("%v, %v", out, err)
		}
	}
	homes := map[string]int{}
	ofB := ""
	for i := range 60 {
		name := "req-" + strconv.Itoa(i)
		for _, at := range []string{idA, idB, idC} {
			choose(at, name)
		}
		home := asked[name][:len(idA)]
		if asked[name] != strings.Repeat(home, 3) {
			t.Fatalf("%s was answered by %s", name, asked[name])
		}
		if homes[home]++; home == idB {
			ofB = name
		}
	}
	if len(homes) != 3 || homes[idA] < 8 || homes[idB] < 8 || homes[idC] < 8 {
		t.Errorf("the names are spread as %v", homes)
	}
	for what, c := range map[string]struct {
		want string
		do   func()
	}{
		"no name": {idA, func() { choose(idA, "") }},
		"nothing booked": {idA, func() {
			choose(idA, ofB, func(in *kvpilotv1.ChooseReplicaRequest) { in.Booking = kvpilotv1.Booking_BOOKING_NONE })
		}},
		"booked here": {idA, func() { f.nodes[idA].router.claimed = ofB; choose(idA, ofB); f.nodes[idA].router.claimed = "" }},
		"the home is down": {idA, func() {
			f.up = func(id string) bool { return id != idB }
			choose(idA, ofB)
			f.up = func(string) bool { return true }
		}},
	} {
		clear(asked)
		c.do()
		if got := strings.Join(slices.Collect(maps.Values(asked)), "+"); got != c.want {
			t.Errorf("%s: answered by %s, want %s", what, got, c.want)
		}
	}
}
