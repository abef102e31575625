package fleet

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/internal/reports"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/test/stack"
)

// surface is a router as clients see it.
type surface struct {
	kvpilotv1.RoutingServiceClient
	kvpilotv1.RouterServiceClient
}

func surfaces(t *testing.T, routers []*stack.Stack) []surface {
	t.Helper()
	list := make([]surface, len(routers))
	for i, r := range routers {
		conn, err := grpc.NewClient(r.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		list[i] = surface{kvpilotv1.NewRoutingServiceClient(conn), kvpilotv1.NewRouterServiceClient(conn)}
		eventually(t, "each router knows two replicas that are ready", func() bool {
			return metric(t, r, `kvpilot_registry_replicas{state="ready"}`) == 2
		})
	}
	return list
}

// reserve books a request by any router.
func reserve(ctx context.Context, t *testing.T, at surface) string {
	t.Helper()
	out, err := at.ChooseReplica(ctx, &kvpilotv1.ChooseReplicaRequest{Model: "sim", Prompt: &kvpilotv1.ChooseReplicaRequest_Text{Text: strings.Repeat("a long prompt ", 50)}, Reports: kvpilotv1.Reports_REPORTS_ALL, Explain: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.GetDecision().GetCandidates()) != 2 {
		t.Errorf("an explanation with a booking: %v", out.GetDecision())
	}
	return out.GetReservationId()
}

// loads are all requests and those in prefill, as each router answers.
func loads(ctx context.Context, t *testing.T, list []surface) (same bool, requests, waiting uint32) {
	t.Helper()
	var first *kvpilotv1.GetLoadsResponse
	for i, s := range list {
		out, err := s.GetLoads(ctx, &kvpilotv1.GetLoadsRequest{})
		if err != nil || len(out.GetRanks()) != 2 || len(out.GetUnanswered()) > 0 {
			t.Fatalf("loads of router %d: %v, %v", i, out, err)
		}
		for _, l := range out.GetRanks() {
			l.EngineAge, l.CountedBy, l.Backlog, l.QueuedTokens, l.Speed = nil, "", nil, 0, nil // they change with time
		}
		if first == nil {
			first = out
		} else if !proto.Equal(first, out) {
			return false, 0, 0
		}
	}
	for _, l := range first.GetRanks() {
		requests += l.GetRequests()
		waiting += l.GetWaiting()
	}
	return true, requests, waiting
}

func untilLoads(ctx context.Context, t *testing.T, list []surface, wantRequests, wantWaiting uint32) {
	t.Helper()
	eventually(t, fmt.Sprintf("each router counts %d requests, %d in prefill", wantRequests, wantWaiting), func() bool {
		same, requests, waiting := loads(ctx, t, list)
		return same && requests == wantRequests && waiting == wantWaiting
	})
}

func TestEachRouterAnswersForAll(t *testing.T) {
	stack.Aside(t)
	routers := start(t, 3)
	list, ctx := surfaces(t, routers), t.Context()

	self := make([]string, len(list))
	decider := -1
	for i, s := range list {
		out, err := s.ListRouters(ctx, &kvpilotv1.ListRoutersRequest{})
		if err != nil || len(out.GetRouters()) != 3 {
			t.Fatalf("routers at %d: %v, %v", i, out, err)
		}
		self[i] = out.GetRouters()[0].GetRouterId()
		for _, r := range out.GetRouters() {
			if !r.GetConnected() || r.GetReport().GetVersion() != "test" || r.GetState() != kvpilotv1.RouterState_ROUTER_STATE_ALIVE || r.GetAddress() == "" || r.GetName() == "" || r.GetWireMajor() == 0 {
				t.Errorf("routers at %d: %v", i, r)
			}
			if r.GetSelf() && slices.Contains(r.GetDecides(), "sim") {
				decider = i
			}
		}
	}
	if decider < 0 {
		t.Fatal("no router decides")
	}

	// A booking's reports may go to any router.
	for i := range list {
		id := reserve(ctx, t, list[i])
		if !strings.HasPrefix(id, self[i]) {
			t.Errorf("router %s booked %s", self[i], id)
		}
		untilLoads(ctx, t, list, 1, 1)
		if _, err := list[(i+1)%3].ReportReservation(ctx, reports.FirstToken(id)); err != nil {
			t.Error(err)
		}
		untilLoads(ctx, t, list, 1, 0)
		if _, err := list[(i+2)%3].ReportReservation(ctx, reports.Completed(id)); err != nil {
			t.Error(err)
		}
		untilLoads(ctx, t, list, 0, 0)
	}

	// A stream to one router releases what another one owns.
	id := reserve(ctx, t, list[1])
	streaming, leave := context.WithCancel(ctx)
	stream, err := list[2].TrackReservation(streaming)
	if err == nil {
		err = stream.Send(reports.Bind(id))
	}
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Error(err)
	}
	untilLoads(ctx, t, list, 1, 1)
	leave()
	untilLoads(ctx, t, list, 0, 0)

	// Every router explains and lists every decision, with all candidates and the true outcome.
	burst(t, routers, 2)
	untilLoads(ctx, t, list, 0, 0)
	var lists [3]string
	for i, s := range list {
		out, err := s.ListDecisions(ctx, &kvpilotv1.ListDecisionsRequest{})
		if err != nil || len(out.GetUnanswered()) > 0 {
			t.Fatalf("%v, %v", err, out.GetUnanswered())
		}
		for _, d := range out.GetDecisions() {
			lists[i] += d.GetDecisionId() + " " + d.GetOutcome().GetEnd().String() + "\n"
			by := ""
			if owner := self[decider]; !strings.HasPrefix(d.GetDecisionId(), owner) {
				by = owner
			}
			if len(d.GetCandidates()) != 2 || d.GetDecidedBy() != by || d.GetAlone() != kvpilotv1.Alone_ALONE_UNSPECIFIED {
				t.Errorf("at %d: %v", i, d)
			}
		}
		found, err := s.ExplainDecision(ctx, &kvpilotv1.ExplainDecisionRequest{Key: &kvpilotv1.ExplainDecisionRequest_DecisionId{DecisionId: id}})
		if err != nil || len(found.GetDecisions()) != 1 || len(found.GetDecisions()[0].GetCandidates()) != 2 || found.GetDecisions()[0].GetOutcome().GetEnd() != kvpilotv1.End_END_CANCELED {
			t.Errorf("at %d: %v, %v", i, found, err)
		}
	}
	if n := strings.Count(lists[0], "\n"); n != 10 || lists[0] != lists[1] || lists[1] != lists[2] {
		t.Errorf("the routers list %d decisions and others:\n%s\n%s\n%s", n, lists[0], lists[1], lists[2])
	}

	// Dry runs are the decider's, which knows what is booked.
	id = reserve(ctx, t, list[(decider+1)%3])
	for i, s := range list {
		out, err := s.ChooseReplica(ctx, &kvpilotv1.ChooseReplicaRequest{Model: "sim", Booking: kvpilotv1.Booking_BOOKING_DRY_RUN, Explain: true})
		if err != nil || !strings.HasPrefix(out.GetDecisionId(), self[decider]) {
			t.Errorf("a dry run at %d: %v, %v", i, out.GetDecisionId(), err)
		}
		overlap, err := s.ScoreOverlap(ctx, &kvpilotv1.ScoreOverlapRequest{Prompt: &kvpilotv1.ScoreOverlapRequest_Text{Text: "x"}})
		if err != nil || len(overlap.GetRanks()) != 2 {
			t.Errorf("overlaps at %d: %v, %v", i, overlap, err)
		}
	}
	// With its owner, a reservation is gone.
	gone := (decider + 1) % 3
	routers[gone].Stop()
	left := slices.Delete(slices.Clone(list), gone, gone+1)
	eventually(t, "the reservation is unknown", func() bool {
		_, err := left[0].ReportReservation(ctx, reports.Renew(id))
		return status.Code(err) == codes.NotFound
	})
	untilLoads(ctx, t, left, 0, 0)
}

// The same question at each router at the same time is booked once, and its reports may go to any of them.
func TestOneQuestionAtEachRouterBooksOnce(t *testing.T) {
	stack.Aside(t)
	list, ctx := surfaces(t, start(t, 3)), t.Context()
	for n := range 10 {
		in := &kvpilotv1.ChooseReplicaRequest{
			Model: "sim", RequestId: fmt.Sprintf("question-%d", n), Prompt: &kvpilotv1.ChooseReplicaRequest_Text{Text: "a prompt"}, Reports: kvpilotv1.Reports_REPORTS_ALL,
		}
		out := make([]*kvpilotv1.ChooseReplicaResponse, 3)
		var asking sync.WaitGroup
		for i, s := range list {
			asking.Go(func() {
				var err error
				if out[i], err = s.ChooseReplica(ctx, in); err != nil {
					t.Errorf("router %d: %v", i, err)
				}
			})
		}
		asking.Wait()
		booked := 0
		for _, o := range out {
			if o.GetReservationId() != out[0].GetReservationId() || o.GetReplicaId() != out[0].GetReplicaId() {
				t.Errorf("the answers are %v", out)
			}
			if o.GetEffect() == kvpilotv1.Effect_EFFECT_APPLIED {
				booked++
			}
		}
		if booked != 1 {
			t.Errorf("%s was booked %d times", in.GetRequestId(), booked)
		}
		untilLoads(ctx, t, list, 1, 1)
		in.Prompt = &kvpilotv1.ChooseReplicaRequest_Text{Text: "another prompt"}
		if _, err := list[n%3].ChooseReplica(ctx, in); status.Code(err) != codes.AlreadyExists {
			t.Errorf("another question of that name: %v", err)
		}
		if _, err := list[n%3].ReportReservation(ctx, reports.Completed(out[0].GetReservationId())); err != nil {
			t.Error(err)
		}
		untilLoads(ctx, t, list, 0, 0)
	}
}

func TestTenantsAreApartAtEachRouter(t *testing.T) {
	stack.Aside(t)
	routers := start(t, 2, func(c *config.Config) {
		for _, name := range []string{"team", "rivals"} {
			c.API.Keys = append(c.API.Keys, grpcapi.Key{Name: name, Key: secret.New(name + "-key-0001")})
		}
		c.API.Keys = append(c.API.Keys, grpcapi.Key{Name: "ops", Key: secret.New("ops-key-0001"), Roles: []string{"observe"}})
		c.Router.ShowOverlap = "always"
	})
	list := surfaces(t, routers)
	as := func(who string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "x-api-key", who+"-key-0001")
	}
	passed, err := proto.Marshal(&peerv1.ForwardedCaller{Tenant: "team", Roles: []string{"admin"}, By: "key"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		id, other := reserve(as("team"), t, list[i]), list[1-i]
		forged := metadata.AppendToOutgoingContext(as("rivals"), "kvpilot-caller-bin", string(passed))
		for _, ctx := range []context.Context{as("rivals"), forged} {
			for _, s := range list {
				if _, err := s.ReportReservation(ctx, reports.Completed(id)); status.Code(err) != codes.NotFound {
					t.Errorf("another tenant releases: %v", err)
				}
				if _, err := s.ExplainDecision(ctx, &kvpilotv1.ExplainDecisionRequest{Key: &kvpilotv1.ExplainDecisionRequest_DecisionId{DecisionId: id}}); status.Code(err) != codes.NotFound {
					t.Errorf("another tenant reads: %v", err)
				}
				if out, err := s.ListDecisions(ctx, &kvpilotv1.ListDecisionsRequest{}); err != nil || len(out.GetDecisions()) > 0 {
					t.Errorf("another tenant lists: %v, %v", out, err)
				}
				if _, err := s.ListRouters(ctx, &kvpilotv1.ListRoutersRequest{}); status.Code(err) != codes.PermissionDenied {
					t.Errorf("another tenant lists routers: %v", err)
				}
			}
		}
		untilLoads(as("ops"), t, list, 1, 1)
		if out, err := other.ListDecisions(as("ops"), &kvpilotv1.ListDecisionsRequest{}); err != nil || len(out.GetDecisions()) != i+1 {
			t.Errorf("an operator lists: %v, %v", out, err)
		}
		if _, err := other.ReportReservation(as("team"), reports.Completed(id)); err != nil {
			t.Error(err)
		}
	}
	untilLoads(as("ops"), t, list, 0, 0)
	resp, err := http.Get("http://" + routers[0].HTTP + "/kvpilot/v1/routers")
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a key: %v, %v", resp.Status, err)
	}
	resp.Body.Close()
}
