package router_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// named is a question by a name, of a tenant.
func named(tenant, name, text string) *intake.Question {
	return &intake.Question{Model: "m", RequestID: name, Caller: intake.Caller{Tenant: tenant}, Input: intake.Input{Text: text}, Terms: intake.Terms{Booking: intake.ReserveOnce}}
}

func TestAChoiceIsMadeOncePerName(t *testing.T) {
	f := start(t, 2, nil)
	first, err := f.router.Choose(t.Context(), named("a", "x", "once"))
	must(t, err)
	again, err := f.router.Choose(t.Context(), named("a", "x", "once"))
	must(t, err)
	if first.Duplicate || !again.Duplicate || again.Decision.ID != first.Decision.ID || again.Lease != first.Lease || again.Host != first.Host || again.Port != first.Port {
		t.Errorf("first %+v, again %+v", first, again)
	}
	other, err := f.router.Choose(t.Context(), named("b", "x", "once"))
	must(t, err)
	if other.Duplicate || other.Decision.ID == first.Decision.ID {
		t.Error("two tenants share a name")
	}
	for _, differs := range []*intake.Question{named("a", "x", "twice"), {Model: "m", RequestID: "x", Caller: intake.Caller{Tenant: "a"}, Input: intake.Input{IDs: []uint32{1}}, Terms: intake.Terms{Booking: intake.ReserveOnce}}} {
		if _, err := f.router.Choose(t.Context(), differs); reasonOf(err) != apierror.Conflict {
			t.Errorf("another question by the name: %v", err)
		}
	}
	if a, err := f.router.Choose(t.Context(), &intake.Question{Model: "m", RequestID: "x", Caller: intake.Caller{Tenant: "a"}, Input: intake.Input{Text: "once"}, Terms: intake.Terms{Booking: intake.Reserve}}); err != nil || a.Decision.ID == first.Decision.ID {
		t.Errorf("a request id that names nothing: %v", err)
	} else {
		a.Release(chooser.Result{})
	}
	if live := f.book.Live(); live != 2 {
		t.Errorf("%d reservations, want 2", live)
	}
	again.Release(chooser.Result{})
	fresh, err := f.router.Choose(t.Context(), named("a", "x", "twice"))
	must(t, err)
	if fresh.Duplicate || fresh.Decision.ID == first.Decision.ID {
		t.Error("a name stays taken after its reservation ended")
	}
	fresh.Release(chooser.Result{})
	other.Release(chooser.Result{})
	f.settled()
}

func TestRetriesAtOnceShareOneChoice(t *testing.T) {
	f := start(t, 2, nil)
	var all sync.WaitGroup
	answers := make([]*router.Answer, 32)
	for i := range answers {
		all.Go(func() {
			var err error
			if answers[i], err = f.router.Choose(t.Context(), named("", "x", "once")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	firsts := 0
	for _, a := range answers {
		if a == nil {
			t.Fatal("no answer")
		}
		if !a.Duplicate {
			firsts++
		}
		if a.Decision.ID != answers[0].Decision.ID {
			t.Error("a retry got another reservation")
		}
	}
	if firsts != 1 || f.book.Live() != 1 {
		t.Errorf("%d first choices, %d reservations", firsts, f.book.Live())
	}
	answers[0].Release(chooser.Result{})
	f.settled()
}

// The first call waits for room and leaves; the retry, which came meanwhile, is the first then.
func TestARetryTakesOverFromACallerWhoLeft(t *testing.T) {
	f := start(t, 1, func(_ *router.Params, c *chooser.Config, _ *registry.Config) { c.MaxRequestsPerRank = 1 })
	holder, err := f.router.Choose(t.Context(), named("", "holder", "x"))
	must(t, err)
	if _, err := f.router.Choose(t.Context(), named("", "x", "once")); reasonOf(err) != apierror.Overloaded {
		t.Errorf("a full rank: %v, want OVERLOADED", err)
	}
	holder.Release(chooser.Result{})
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := f.router.Choose(gone, named("", "x", "once")); reasonOf(err) != apierror.Cancelled {
		t.Errorf("a caller who left: %v", err)
	}
	a, err := f.router.Choose(t.Context(), named("", "x", "once"))
	must(t, err)
	if a.Duplicate {
		t.Error("a choice that failed is taken for one that was made")
	}
	a.Release(chooser.Result{})
	f.settled()
}

// A reservation whose replica is gone is nothing to send a retry to.
func TestARetryAfterItsReplicaIsGoneChoosesAgain(t *testing.T) {
	f := start(t, 2, nil)
	first, err := f.router.Choose(t.Context(), named("", "x", "once"))
	must(t, err)
	f.book.Forget(first.Slot, time.Now().Add(time.Hour))
	again, err := f.router.Choose(t.Context(), named("", "x", "once"))
	must(t, err)
	if again.Duplicate || again.Decision.ID == first.Decision.ID {
		t.Error("the retry was given a reservation that is lost")
	}
	again.Release(chooser.Result{})
	f.settled()
}

// A prompt that no context holds goes to the longest, without a word to those who remember prompts; one
// that a replica could hold which cannot take it now is one to retry.
func TestTooLongAPromptIsNoLoad(t *testing.T) {
	f := start(t, 2, func(_ *router.Params, c *chooser.Config, _ *registry.Config) { c.Policy = decision.OverlapLoad })
	ids := make([]uint32, 131073)
	_, err := f.router.Choose(t.Context(), &intake.Question{Model: "m", Input: intake.Input{IDs: ids}, Terms: intake.Terms{Booking: intake.Reserve}})
	if reasonOf(err) != apierror.InvalidBody || apierror.From(err).RetryAfter != 0 {
		t.Errorf("a prompt beyond every context: %v", err)
	}
	f.settled()
	for _, r := range f.params.Registry.Snapshot().Replicas {
		if v := f.book.View(r.Slots[0], time.Now()); v.PrefillTokens != 0 || v.InFlight != 0 {
			t.Errorf("%s: %+v is booked", r.ID, v)
		}
	}
	a, err := f.router.Choose(t.Context(), &intake.Question{Model: "m", Input: intake.Input{IDs: ids[:64]}})
	must(t, err)
	if overlap := a.Decision.Pick().GPU; overlap != 0 {
		t.Errorf("a prompt that was refused is believed to be cached: %d tokens", overlap)
	}
	must(t, f.params.Registry.Drain(t.Context(), "r0", registry.DrainOptions{Force: true}))
	_, err = f.router.Choose(t.Context(), &intake.Question{Model: "m", Input: intake.Input{IDs: ids}, Terms: intake.Terms{Booking: intake.Reserve}})
	if reasonOf(err) != apierror.InvalidBody {
		t.Errorf("with a draining replica of the same context: %v", err)
	}
}

// What a draining replica stores is continued there.
func TestAStoredResponseIsContinuedOnADrainingReplica(t *testing.T) {
	f := start(t, 2, nil)
	f.script(text(200, `{"id":"resp_1","object":"response"}`))
	body := `{"model":"m","input":"go on","previous_response_id":"resp_0"}`
	for _, at := range []replica.ID{"r0", "r1"} {
		f.params.Pins.Put("", "resp_0", at)
		must(t, f.params.Registry.Drain(t.Context(), at, registry.DrainOptions{Force: true}))
		c := &client{}
		call := chat(body)
		call.Route, call.Path = openai.RouteResponses, "/v1/responses"
		must(t, f.router.Serve(t.Context(), call, c))
		if got := c.header.Get("X-Kvpilot-Replica"); got != string(at) || c.status != 200 {
			t.Errorf("%d from %s, want %s", c.status, got, at)
		}
		must(t, f.params.Registry.Undrain(t.Context(), at))
	}
	f.settled()
}
