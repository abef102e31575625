package chooser_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// contexts sets the lengths of the replicas' contexts.
func (f *fleet) contexts(lengths ...int) {
	for i, n := range lengths {
		f.replicas[i].Models = []replica.Model{{ID: "m", MaxLen: n}}
	}
}

func TestTooLongAPromptGoesToTheLongestContext(t *testing.T) {
	for name, c := range map[string]struct {
		contexts []int
		change   func(*fleet, *chooser.Request)
		want     replica.ID // empty: none, and a retry may help
		reason   decision.Reason
	}{
		"it fits one":                   {[]int{1000, 9000, 2000}, nil, "r1", decision.ReasonOnly},
		"it fits none":                  {[]int{1000, 2000, 1500}, nil, "r1", decision.ReasonTooLong},
		"the length is not known":       {[]int{1000, 0, 1500}, nil, "r1", decision.ReasonOnly},
		"the one that it fits starts":   {[]int{1000, 9000, 1500}, func(f *fleet, _ *chooser.Request) { f.replicas[1].State = replica.StateStarting }, "", decision.ReasonNone},
		"the one that it fits is tried": {[]int{1000, 9000, 1500}, func(_ *fleet, r *chooser.Request) { r.Exclude = []replica.ID{"r1"} }, "", decision.ReasonNone},
		"one that it does not is away":  {[]int{1000, 2000, 1500}, func(f *fleet, _ *chooser.Request) { f.replicas[1].State = replica.StateUnhealthy }, "r2", decision.ReasonTooLong},
		"the caller denies the fitting": {[]int{1000, 9000, 1500}, func(_ *fleet, r *chooser.Request) { r.Options.Denied = []replica.ID{"r1"} }, "r2", decision.ReasonTooLong},
		"the caller's pin":              {[]int{1000, 9000, 1500}, func(_ *fleet, r *chooser.Request) { r.Options.Pinned, r.Options.PinnedRank = "r0", -1 }, "r0", decision.ReasonTooLong},
		"the engine cuts it":            {[]int{1000, 1000, 1000}, func(_ *fleet, r *chooser.Request) { r.Longest = 0 }, "r0", decision.ReasonCost},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 3, nil)
			f.contexts(c.contexts...)
			f.holds(0, 1, 4096)
			req := f.request(1, 4096)
			req.Longest = 4096
			if c.change != nil {
				c.change(f, req)
			}
			choice, err := f.chooser.Choose(context.Background(), req)
			if c.want == "" {
				var none *chooser.NoReplica
				if !errors.As(err, &none) || none.Decision.Reason != c.reason {
					t.Fatalf("Choose() = %v", err)
				}
				return
			}
			if err != nil || choice.Replica.ID != c.want || choice.Decision.Reason != c.reason {
				t.Fatalf("chose %+v, %v; want %s for %q", choice, err, c.want, c.reason)
			}
			if _, same := selector.Recompute(choice.Decision); !same {
				t.Error("the record does not give the same choice")
			}
			l := f.book.View(choice.Slot, time.Now())
			if tooLong := c.reason == decision.ReasonTooLong; tooLong && (l.PrefillTokens != 0 || l.DecodeBlocks != 0 || l.InFlight != 1) {
				t.Errorf("what the engine refuses at once is booked as %+v", l)
			}
			choice.Release(done(decision.EndRejected))
			f.empty()
		})
	}
}

// What remembers where prompts went learns of a choice that books nothing, and of no dry run.
func TestAnUnbookedChoiceTeaches(t *testing.T) {
	f := newFleet(t, 3, func(c *chooser.Config, _ *chooser.Params) { c.Policy = decision.PrefixAffinity })
	for _, r := range f.replicas {
		f.index.SetState(r.Slots[0], kvblock.FeedNone)
	}
	ask := func(change func(*chooser.Request)) *chooser.Choice {
		req := f.request(1, 1024)
		req.Text, req.Session = "once upon a time there was a prompt", "s"
		change(req)
		return f.choose(req)
	}
	ask(func(r *chooser.Request) { r.DryRun = true })
	if d := ask(func(r *chooser.Request) { r.DryRun = true }).Decision; d.Pick().Chars != 0 || d.Pick().GPU != 0 {
		t.Errorf("a dry run taught: %+v", d.Pick())
	}
	first := ask(func(r *chooser.Request) { r.Unbooked = true })
	again := ask(func(r *chooser.Request) { r.Unbooked = true })
	if again.Replica.ID != first.Replica.ID || again.Decision.Pick().Chars == 0 || again.Decision.Pick().GPU != 1008 || again.Decision.DryRun {
		t.Errorf("after a choice that was not booked: %s then %s, %+v", first.Replica.ID, again.Replica.ID, again.Decision.Pick())
	}
	f.empty()
}

// One that stores what the request continues is the only one, and may drain.
func TestTheHolderServesAlone(t *testing.T) {
	f := newFleet(t, 3, nil)
	f.holds(0, 1, 4096)
	f.replicas[2].State = replica.StateDraining
	req := f.request(1, 4096)
	req.Holder = "r2"
	c := f.choose(req)
	if c.Replica.ID != "r2" || c.Decision.Reason != decision.ReasonPinned || !c.Decision.Pinned {
		t.Errorf("%s for %q", c.Replica.ID, c.Decision.Reason)
	}
	c.Release(done(decision.EndCompleted))
	f.replicas[2].State = replica.StateUnhealthy
	req = f.request(1, 4096)
	req.Holder = "r2"
	var none *chooser.NoReplica
	if _, err := f.chooser.Choose(context.Background(), req); !errors.As(err, &none) {
		t.Errorf("with the holder away: %v", err)
	}
	f.empty()
}

func TestServedByIsTheOutcomesReplica(t *testing.T) {
	f := newFleet(t, 2, nil)
	ends := 0
	c := f.choose(f.request(1, 1000))
	c.OnEnd(func(chooser.Result) { ends++ })
	result := done(decision.EndCompleted)
	result.ServedBy = "elsewhere"
	c.Release(result)
	c.Release(result)
	c.OnEnd(func(chooser.Result) { ends++ })
	if o := f.outcomes[0]; o.Replica != "elsewhere" || o.Slot != replica.NoSlot || ends != 2 {
		t.Errorf("outcome %+v, told of %d ends", o, ends)
	}
	f.empty()
}
