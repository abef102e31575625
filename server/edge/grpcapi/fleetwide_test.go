package grpcapi_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/internal/reports"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/peers/members"
)

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
