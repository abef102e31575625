package router_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/route/splits"
)

// split starts two replicas, of which r1 has the label track=canary, and a router that splits the model m between them.
func split(t *testing.T, canary int, change func(*splits.Config)) (*fleet, *splits.Splits) {
	t.Helper()
	c := splits.DefaultConfig()
	c.Models = []splits.Split{{Model: "m", Sides: []splits.Side{
		{Name: "stable", Labels: map[string]string{"track": "stable"}, Weight: 100 - canary},
		{Name: "canary", Labels: map[string]string{"track": "canary"}, Weight: canary},
	}}}
	if change != nil {
		change(&c)
	}
	s := splits.New(c, splits.Params{})
	return start(t, 2, func(p *router.Params, _ *chooser.Config, rc *registry.Config) {
		p.Splits = s
		for i, track := range []string{"stable", "canary"} {
			rc.Replicas[i].Labels = map[string]string{"track": track}
		}
	}), s
}

// serve sends one turn of a conversation and returns its status.
func serve(t *testing.T, f *fleet, call *intake.Call) int {
	t.Helper()
	var got client
	if err := f.router.Serve(t.Context(), call, &got); err != nil {
		return http.StatusBadGateway
	}
	return got.status
}

// turn is a turn of a conversation without a session.
func turn(topic, turns int) *intake.Call {
	messages := []string{`{"role":"system","content":"Be brief."}`, fmt.Sprintf(`{"role":"user","content":"topic %d"}`, topic)}
	for i := range turns {
		messages = append(messages, `{"role":"assistant","content":"ok"}`, fmt.Sprintf(`{"role":"user","content":"more %d"}`, i))
	}
	call := chat(`{"model":"m","messages":[` + strings.Join(messages, ",") + `]}`)
	call.RequestID = fmt.Sprint("req-", topic, "-", turns)
	return call
}

func TestConversationsWithoutASessionStayOnTheirSide(t *testing.T) {
	f, s := split(t, 50, nil)
	for topic := range 30 {
		before := [2]int{f.engines[0].requests(), f.engines[1].requests()}
		for turns := range 3 {
			if status := serve(t, f, turn(topic, turns)); status != http.StatusOK {
				t.Fatalf("the status is %d", status)
			}
		}
		if a, b := f.engines[0].requests()-before[0], f.engines[1].requests()-before[1]; a != 3 && b != 3 {
			t.Errorf("the turns of topic %d went to both sides: %d and %d", topic, a, b)
		}
	}
	sides := s.List()[0].Sides
	if sides[0].Requests != f.engines[0].requests() || sides[1].Requests != f.engines[1].requests() || sides[1].Requests < 15 || sides[1].Requests > 75 {
		t.Errorf("of 90 requests the sides have %d and %d", sides[0].Requests, sides[1].Requests)
	}
	f.settled()
}

func TestACanaryThatFailsStepsBackAndServesNoFurtherRequest(t *testing.T) {
	f, s := split(t, 30, func(c *splits.Config) { c.StepBack, c.StepBackSessions = true, 20 })
	f.engines[1].does(text(http.StatusInternalServerError, `{"error":{"message":"broken"}}`))
	failed := 0
	for topic := range 400 {
		if serve(t, f, turn(topic, 0)) != http.StatusOK {
			failed++
		}
	}
	canary := s.List()[0].Sides[1]
	if canary.Back == nil || !strings.Contains(canary.Back.Why, "requests failed") || failed < 20 || failed > 40 {
		t.Fatalf("%d of 400 requests failed, the canary: %+v", failed, canary)
	}
	if status := serve(t, f, turn(1000, 0)); status != http.StatusOK {
		t.Errorf("afterwards the status is %d", status)
	}
}

func TestASideWithoutAReadyReplicaIsServedByTheOther(t *testing.T) {
	f, s := split(t, 50, nil)
	f.engines[1].srv.Close()
	f.eventually("the canary is not ready", func() bool {
		r, ok := f.params.Registry.Snapshot().Replica("r1")
		return ok && r.State != replica.StateReady
	})
	for topic := range 20 {
		if status := serve(t, f, turn(topic, 0)); status != http.StatusOK {
			t.Fatalf("topic %d: the status is %d", topic, status)
		}
	}
	if sides := s.List()[0].Sides; sides[1].Ready || sides[1].Requests != 0 || sides[0].Requests != 20 {
		t.Errorf("the sides: %+v", sides)
	}
}

func TestADecisionNamesItsSide(t *testing.T) {
	f, s := split(t, 0, func(c *splits.Config) { c.Models[0].Sides[0].Weight, c.Models[0].Sides[1].Weight = 1, 999_999 })
	h := handOff(t, f, streamBody, router.SeesAll)
	if got := h.Decision().Side; got != (decision.Side{Model: "m", Name: "canary"}) || h.Replica().ID != "r1" {
		t.Errorf("the decision for %s has %+v", h.Replica().ID, got)
	}
	h.End(t.Context(), nil)
	must(t, s.Set("m", "canary", true, "alice"))
	h = handOff(t, f, streamBody, router.SeesAll)
	if got := h.Decision().Side; got != (decision.Side{Model: "m", Name: "stable", InsteadOf: "canary"}) || h.Replica().ID != "r0" {
		t.Errorf("the decision for %s has %+v", h.Replica().ID, got)
	}
	h.End(t.Context(), nil)
	f.settled()
}

func TestTheCallersOwnLimitsCountMoreThanASide(t *testing.T) {
	f, s := split(t, 100, nil)
	call := turn(1, 0)
	call.Options.Pinned, call.Options.PinnedRank = "r0", -1
	if status := serve(t, f, call); status != http.StatusOK || f.engines[0].requests() != 1 {
		t.Errorf("a pinned request: %d", status)
	}
	call = turn(2, 0)
	call.Options.Allowed = []replica.ID{"r0"}
	if status := serve(t, f, call); status != http.StatusOK || f.engines[0].requests() != 2 {
		t.Errorf("a request for r0 alone: %d", status)
	}
	if n := s.List()[0].Sides[1].Requests; n != 1 {
		t.Errorf("the side has %d requests, want that which was not pinned", n)
	}
}

func TestRewritesWithSeveralTargetsAreSplit(t *testing.T) {
	f, s := split(t, 0, func(c *splits.Config) { c.Models = nil })
	for i := range 20 {
		call := turn(i, 0)
		call.Body = []byte(strings.Replace(string(call.Body), `"model":"m"`, `"model":"alias"`, 1))
		call.Rewrites = rewrites{"m", "unknown"}
		h, err := f.router.HandOff(t.Context(), call, router.SeesAll)
		must(t, err)
		if side := h.Decision().Side; side.Model != "alias" || side.Name != "m" {
			t.Errorf("the side is %+v", side)
		}
		h.Begin(events())
		h.End(t.Context(), nil)
	}
	if sides := s.List()[0].Sides; sides[0].Requests != 20 || sides[1].Ready || sides[1].Name != "unknown" {
		t.Errorf("the sides: %+v", sides)
	}
}
