package leases_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/settings"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// outcomeList keeps the outcomes.
type outcomeList struct{ to *[]decision.Outcome }

func (l outcomeList) Decision(*decision.Decision) {}
func (l outcomeList) Outcome(o decision.Outcome)  { *l.to = append(*l.to, o) }

// A caller that dies reports nothing: its lease ends the choice like any other end, and the
// chooser keeps nothing of it.
func TestALeaseThatRunsOutEndsTheChoice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := load.New(load.DefaultConfig(), load.Params{})
		index := kvindex.New(kvindex.DefaultConfig(), kvindex.Params{})
		var outcomes []decision.Outcome // appended by the book's sweep, read after it waits
		c := chooser.New(settings.DefaultConfig(), chooser.Params{Index: index, Book: book, Record: outcomeList{&outcomes}})
		r := &replica.Replica{ID: "a", State: replica.StateReady, Slots: []replica.Slot{0}, Models: []replica.Model{{ID: "m"}}, BlockSize: 16}
		book.AddRank(0)
		c.AddRank(0, r, 0)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- book.Run(ctx) }()

		choice, err := c.Choose(ctx, &ask.Request{
			Request: decision.Request{ID: "x", Model: "m"}, Pool: ask.Pool{Replicas: []*replica.Replica{r}}, Prompt: ask.Prompt{PromptTokens: 100}, Terms: ask.Terms{Lease: 10 * time.Second},
		})
		if err != nil || choice.Replica != r {
			t.Fatalf("Choose: %v, %v", choice, err)
		}
		time.Sleep(8 * time.Second)
		synctest.Wait()
		if out := c.Renew(load.Key{ID: "x"}); out != load.Applied {
			t.Errorf("Renew within the lease: %s, want applied", out)
		}
		time.Sleep(12 * time.Second)
		synctest.Wait()
		if len(outcomes) != 1 || outcomes[0].End != decision.EndExpired || outcomes[0].ID != "x" {
			t.Errorf("outcomes %+v, want one that expired", outcomes)
		}
		if c.Holds("", "x") {
			t.Error("the chooser still holds the choice")
		}
		if out := c.ReportProgress(load.Key{ID: "x"}, 5); out != load.Ended {
			t.Errorf("a report after the lease: %s, want ended", out)
		}
		if v := book.View(0, time.Now()); v.InFlight != 0 || book.Live() != 0 {
			t.Errorf("still booked: %+v", v)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
