package grpcapi_test

import (
	"context"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/peers/members"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

func record(n *node, d *decision.Decision) {
	if d.Candidates == nil {
		d.Candidates = []decision.Candidate{{RankID: decision.RankID{Replica: "r0"}}}
	}
	n.decisions.Add(d)
}

func explain(id string) *kvpilotv1.ExplainDecisionRequest {
	return &kvpilotv1.ExplainDecisionRequest{Key: &kvpilotv1.ExplainDecisionRequest_DecisionId{DecisionId: id}}
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
