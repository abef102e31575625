package forward_test

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/peers/forward"
	"github.com/kvpilot/kvpilot/server/peers/members"
)

// arrived is the context of the callee of a call with the context ctx.
func arrived(ctx context.Context) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx)
	return metadata.NewIncomingContext(context.Background(), md)
}

func TestACallerArrivesAsItWas(t *testing.T) {
	for _, who := range []caller.Caller{
		{Tenant: "Équipe 7", Name: "a\"b", Roles: caller.Infer | caller.Observe, By: caller.ByToken},
		{Tenant: "x"}, {Roles: caller.Gateway | caller.Admin, By: caller.ByKey}, *caller.Anonymous(),
	} {
		got, address, err := forward.Received(arrived(forward.Send(t.Context(), &who, "10.0.0.1", nil)))
		if err != nil || !reflect.DeepEqual(*got, who) || address != "10.0.0.1" {
			t.Errorf("%+v arrived as %+v from %q, %v", who, got, address, err)
		}
	}
}

func TestCredentialsStay(t *testing.T) {
	h := http.Header{"X-Api-Key": {"secret"}, "Authorization": {"Bearer secret"}, "Cookie": {"secret"}, "X-Body-Truncated": {"1"}, "X-Kvpilot-Pin": {"r"}}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "secret")
	md, _ := metadata.FromOutgoingContext(forward.Send(ctx, caller.Anonymous(), "", h))
	if len(md) != 3 || md["x-body-truncated"] == nil || md["x-kvpilot-pin"] == nil {
		t.Errorf("%v goes with the call", md)
	}
}

// gRPC fails a call with metadata of other letters, so that no report of a client with such a header would be passed on.
func TestHeadersThatGRPCDoesNotCarryStay(t *testing.T) {
	h := http.Header{"X-User": {"Zoë"}, "X-Raw": {"\xff"}, "X-Tab": {"a\tb"}, "X-Odd!": {"a"}, "X-Body-Truncated": {"1"}, "X-Two": {"a", "\x00"}}
	md, _ := metadata.FromOutgoingContext(forward.Send(t.Context(), &caller.Caller{Tenant: "a\xff"}, "\xff", h))
	if len(md) != 2 || md["x-body-truncated"] == nil {
		t.Errorf("%v goes with the call", md)
	}
	who, _, err := forward.Received(arrived(forward.Send(t.Context(), &caller.Caller{Tenant: "a\xff"}, "\xff", h)))
	if err != nil || who.Tenant != "a\ufffd" {
		t.Errorf("%+v arrived, %v", who, err)
	}
}

func TestOwnerID(t *testing.T) {
	for id, want := range map[string]string{"0123abcd9": "0123abcd", "0123abcd": "", "0123ABCD9": "", "": "", "req-12345": ""} {
		if got := forward.OwnerID(id); got != want {
			t.Errorf("%q belongs to %q", id, got)
		}
	}
}

func TestANilFleetIsARouterAlone(t *testing.T) {
	var f *forward.Fleet
	owner, err := f.Owner("0123abcd9")
	peers, silent := f.Others()
	if owner != nil || err != nil || len(peers)+len(silent)+len(f.Members()) > 0 || f.Decider("m") != "" || f.Peer("0123abcd") != nil {
		t.Error("it has others")
	}
}

// routers are a fleet in the middle of an update: one member of this wire version that answers, one that does not, one of another
// version, and a dead one.
type routers struct{}

func (routers) Self() members.Member  { return members.Member{ID: "0000000a", WireMajor: 2} }
func (routers) Decider(string) string { return "" }
func (routers) Requests() int         { return 0 }
func (routers) Able() bool            { return true }
func (routers) Others() []members.Member {
	return []members.Member{
		{ID: "0000000b", Name: "answers", WireMajor: 2, State: members.Alive}, {ID: "0000000c", Name: "silent", WireMajor: 2, State: members.Alive},
		{ID: "0000000d", Name: "old", WireMajor: 1, State: members.Stranger}, {ID: "0000000e", Name: "dead", WireMajor: 1, State: members.Dead},
	}
}

func (routers) Conn(id string) (grpc.ClientConnInterface, bool) {
	return &grpc.ClientConn{}, id == "0000000b" || id == "0000000d"
}

// A router of another wire version is never asked: what it made is said to be elsewhere, not gone.
func TestARouterOfAnotherWireVersionIsNotAsked(t *testing.T) {
	f := forward.New(routers{})
	for id, want := range map[string]string{"0000000b1": "answers", "0000000c1": "does not answer", "0000000d1": "wire version 1", "0000000e1": "", "0000000a1": "", "0000000f1": ""} {
		peer, err := f.Owner(id)
		got := ""
		if peer != nil {
			got = peer.Name
		}
		if err != nil {
			got = err.Error()
			if !forward.IsUnreachable(err) {
				t.Errorf("%s: %v", id, err)
			}
		}
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
	list, silent := f.Others()
	if len(list) != 1 || list[0].Name != "answers" || !slices.Equal(silent, []string{"silent", "old"}) {
		t.Errorf("%d can be asked, %q cannot", len(list), silent)
	}
}

func TestErrors(t *testing.T) {
	theirs := apierror.New(apierror.ReservationEnded, "over", nil).GRPCStatus().Err()
	for name, c := range map[string]struct {
		err  error
		want apierror.Reason
	}{
		"the other router's own": {theirs, apierror.ReservationEnded},
		"a broken connection":    {status.Error(codes.Unavailable, "connection to 10.0.0.1 is closing"), apierror.RouterUnreachable},
		"too slow":               {status.Error(codes.DeadlineExceeded, "x"), apierror.RouterUnreachable},
		"an older version":       {status.Error(codes.Unimplemented, "unknown method"), apierror.RouterUnreachable},
		"it stops":               {apierror.New(apierror.ShuttingDown, "x", nil).GRPCStatus().Err(), apierror.RouterUnreachable},
		"the caller left":        {status.Error(codes.Canceled, "x"), apierror.Cancelled},
	} {
		err := forward.Error(c.err)
		if got := apierror.From(err).Reason; got != c.want || forward.IsUnreachable(err) != (c.want == apierror.RouterUnreachable) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestJoin(t *testing.T) {
	at := func(s int64) *timestamppb.Timestamp { return timestamppb.New(time.Unix(s, 0)) }
	two := []*kvpilotv1.Candidate{{ReplicaId: "r0"}, {ReplicaId: "r1"}}
	asker := &kvpilotv1.Decision{DecisionId: "a", Time: at(1), ReplicaId: "r0", DecidedBy: "d", Candidates: two[:1], Outcome: &kvpilotv1.Outcome{End: kvpilotv1.End_END_COMPLETED}}
	decider := &kvpilotv1.Decision{DecisionId: "a", Time: at(99), ReplicaId: "r0", AskedBy: "f", Candidates: two, Outcome: &kvpilotv1.Outcome{End: kvpilotv1.End_END_MOVED}}
	for name, lists := range map[string][2][]*kvpilotv1.Decision{"asker first": {{asker}, {decider}}, "decider first": {{decider}, {asker}}} {
		list := forward.Join(true, lists[0], lists[1])
		if len(list) != 1 || len(list[0].GetCandidates()) != 2 || list[0].GetTime().GetSeconds() != 1 || list[0].GetOutcome().GetEnd() != kvpilotv1.End_END_COMPLETED ||
			list[0].GetDecidedBy() != "d" || list[0].GetAskedBy() != "f" {
			t.Errorf("%s: %v", name, list)
		}
	}
	if len(asker.GetCandidates()) != 1 || decider.GetTime().GetSeconds() != 99 {
		t.Error("a record was changed")
	}
	// The decider's answer came too late, and the frontend went elsewhere by itself.
	alone := &kvpilotv1.Decision{DecisionId: "b", ReplicaId: "r9", Alone: "silent", Candidates: []*kvpilotv1.Candidate{{ReplicaId: "r9"}}}
	late := &kvpilotv1.Decision{DecisionId: "b", ReplicaId: "r0", AskedBy: "f", Candidates: two}
	if got := forward.Join(false, []*kvpilotv1.Decision{late}, []*kvpilotv1.Decision{alone})[0]; got.GetReplicaId() != "r9" || len(got.GetCandidates()) != 1 || got.GetAlone() != "silent" {
		t.Errorf("another choice: %v", got)
	}
	order := forward.Join(false, []*kvpilotv1.Decision{{DecisionId: "a", Attempt: 1, Time: at(1)}, {DecisionId: "b", Time: at(3)}}, []*kvpilotv1.Decision{{DecisionId: "a", Time: at(2)}})
	if order[0].GetAttempt() != 0 || order[1].GetAttempt() != 1 || order[2].GetDecisionId() != "b" {
		t.Errorf("%v", order)
	}
}
