package chooser_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// turn sends a request of a session, which is pinned to a replica unless that is empty, and returns the replica that the
// session was last served by, as the decision has it.
func (f *fleet) turn(tenant, session string, to replica.ID, ahead time.Duration) (last replica.ID, d *decision.Decision) {
	f.t.Helper()
	req := f.request(1, 1000)
	req.Tenant, req.Session, req.SessionReturn = tenant, session, ahead
	req.Options = chooser.Options{Pinned: to, PinnedRank: -1}
	c := f.choose(req)
	defer c.Release(done(decision.EndCompleted))
	for _, cand := range c.Decision.List() {
		if cand.Session {
			last = cand.Replica
		}
	}
	return last, c.Decision
}

func TestSessionsBelongToTheirTenants(t *testing.T) {
	f := newFleet(t, 4, nil)
	f.turn("a", "s", "r3", 0)
	if last, _ := f.turn("a", "s", "", 0); last != "r3" {
		t.Errorf("a's session was last served by %q, want r3", last)
	}
	for _, tenant := range []string{"b", ""} {
		if last, _ := f.turn(tenant, "s", "", 0); last != "" {
			t.Errorf("tenant %q finds a's session on %s by its name", tenant, last)
		}
	}
	if last, _ := f.turn("as", "", "", 0); last != "" {
		t.Errorf("another tenant and name make the same session, on %s", last)
	}
}

func TestTheRingKeepsTenantsSessionsApart(t *testing.T) {
	f := newFleet(t, 4, func(c *chooser.Config, _ *chooser.Params) { c.Policy = decision.ConsistentHash })
	differ := 0
	for i := range 20 {
		var at [2]replica.ID
		for n, tenant := range []string{"a", "b"} {
			_, d := f.turn(tenant, fmt.Sprint("s", i), "", 0)
			_, again := f.turn(tenant, fmt.Sprint("s", i), "", 0)
			if at[n] = d.Pick().Replica; again.Pick().Replica != at[n] || d.Keyless {
				t.Errorf("%s's session %d went to %s and then to %s", tenant, i, at[n], again.Pick().Replica)
			}
		}
		if at[0] != at[1] {
			differ++
		}
	}
	if differ == 0 {
		t.Error("one tenant finds the replicas of another one's sessions by their names")
	}
}

func TestSessionsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, func(c *chooser.Config, _ *chooser.Params) { c.SessionTTL = time.Minute })
		expect := func(what string, want replica.ID) {
			t.Helper()
			if last, _ := f.turn("", "s", "", 0); last != want {
				t.Errorf("%s: last served by %q, want %q", what, last, want)
			}
		}
		f.turn("", "s", "r1", 0)
		time.Sleep(time.Minute)
		f.turn("", "s", "r1", 0)
		time.Sleep(time.Minute)
		expect("a minute after the last turn", "r1")
		f.turn("", "s", "r1", 0)
		time.Sleep(time.Minute + time.Second)
		expect("later", "")
		f.turn("", "s", "r1", time.Hour)
		time.Sleep(time.Hour + time.Minute)
		expect("within the time that the caller named", "r1")
		f.turn("", "s", "r1", chooser.NoReturn)
		expect("after the last request", "")
	})
}

func TestTheLastRequestHasNoNextTurn(t *testing.T) {
	f := newFleet(t, 2, nil)
	if _, d := f.turn("", "s", "", 0); d.Returning <= 0 || d.Returning >= 1 {
		t.Errorf("a next turn is expected with %v", d.Returning)
	}
	if _, d := f.turn("", "s", "", chooser.NoReturn); d.Returning != 0 {
		t.Errorf("after the last request a next turn is expected with %v", d.Returning)
	}
}

func TestTurnsAreCountedByTheirRank(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	f := newFleet(t, 2, func(_ *chooser.Config, p *chooser.Params) {
		p.Scope = scope.Measured(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	})
	for _, to := range []replica.ID{"r1", "r1", "r0"} {
		f.turn("", "s", to, 0)
	}
	f.turn("", "", "", 0)
	if got := fmt.Sprint(collected(t, reader, "kvpilot.chooser.session_turns")); got != "map[first:1 other:1 same:1]" {
		t.Errorf("turns by rank: %s", got)
	}
	if got := collected(t, reader, "kvpilot.chooser.sessions"); got[""] != 1 {
		t.Errorf("%v sessions are remembered", got)
	}
}

// A request's own target counts under each objective, and under policies that do not go by time.
func TestARequestsOwnTargetCountsAlways(t *testing.T) {
	for _, policy := range []decision.Policy{decision.PredictedTTFT, decision.LeastRequests, decision.RoundRobin} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 2, func(c *chooser.Config, _ *chooser.Params) { c.Policy = policy })
				for i := range 30 { // so that the speed is known
					c := f.choose(f.request(i, 4000))
					time.Sleep(500 * time.Millisecond)
					c.FirstToken()
					c.Release(chooser.Result{End: decision.EndCompleted, OutputTokens: 1})
					time.Sleep(time.Second)
				}
				ask := func(target time.Duration, booking ask.Booking) (*chooser.Choice, error) {
					req := f.request(100, 80000) // ten seconds and more
					req.Options.Targets.TTFT, req.Booking = target, booking
					return f.chooser.Choose(context.Background(), req)
				}
				var refused *chooser.Refused
				began := time.Now()
				if _, err := ask(2*time.Second, chooser.Reserve); !errors.As(err, &refused) || refused.Cause != "target" || time.Since(began) > 0 {
					t.Errorf("80,000 tokens within 2 s: %v after %s", err, time.Since(began))
				}
				if c, err := ask(2*time.Second, chooser.DryRun); err != nil || c.Decision.Pick().Late <= 0 {
					t.Errorf("a dry run is answered, and says that it is late: %v", err)
				}
				c, err := ask(time.Minute, chooser.Reserve)
				if err != nil {
					t.Fatal(err)
				}
				if policy == decision.PredictedTTFT && c.Decision.Objective != decision.ObjectiveSLO {
					t.Errorf("the objective is %s", c.Decision.Objective)
				}
				c.Release(done(decision.EndCanceled))
				f.empty()
			})
		})
	}
}
