package chooser_test

import (
	"slices"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
)

// adapterFleet is a fleet whose engines have two slots for adapters each, and say nothing else of themselves.
func adapterFleet(t *testing.T, n int) *fleet {
	slots := &enginestats.Adapters{Slots: 2}
	f := newFleet(t, n, func(_ *chooser.Config, p *chooser.Params) {
		p.Reports = engineReports(func(_ replica.Slot, _ time.Time, _ int, to *chooser.Report) bool {
			*to = chooser.Report{KVUsage: -1, Adapters: slots}
			return true
		})
	})
	for i, r := range f.replicas {
		with := *r
		with.Models = []replica.Model{{ID: "m"}}
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
			with.Models = append(with.Models, replica.Model{ID: name, Parent: "m"})
		}
		f.replicas[i] = &with
	}
	f.know()
	return f
}

// ask chooses a rank for a fresh prompt with an adapter.
func (f *fleet) ask(adapter string) *chooser.Choice {
	f.t.Helper()
	req := f.request(1000+f.ids, 256)
	req.Model, req.Adapter = adapter, adapter
	if adapter == "" {
		req.Model = "m"
	}
	return f.choose(req)
}

// An adapter that was used stays where it is; one that is not there goes where it displaces none in use.
func TestAnAdapterIsServedWhereItIs(t *testing.T) {
	f := adapterFleet(t, 3)
	home := map[string]replica.Slot{}
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		c := f.ask(name)
		if got := c.Decision.Pick().Adapter; got != decision.AdapterAbsent {
			t.Errorf("%s is %q before its first request", name, got)
		}
		if c.Decision.Pick().AdapterLoss > 0 {
			t.Errorf("%s displaces another one while there are free slots", name)
		}
		home[name] = c.Slot
		c.Release(done(decision.EndCompleted))
	}
	for range 4 {
		for name, slot := range home {
			c := f.ask(name)
			if c.Slot != slot || c.Decision.Pick().Adapter != decision.AdapterResident {
				t.Errorf("%s is served at %d, %q; it is at %d", name, c.Slot, c.Decision.Pick().Adapter, slot)
			}
			c.Release(done(decision.EndCompleted))
		}
	}
	f.empty()
}

// No replica gets a third adapter while others have a free slot; when all are full, the price says how long it waits.
func TestAReplicaRunsNoMoreAdaptersThanItHasSlots(t *testing.T) {
	f := adapterFleet(t, 3)
	at := map[replica.Slot][]string{}
	var choices []*chooser.Choice
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "a", "b", "f"} {
		c := f.ask(name)
		c.FirstToken()
		if !slices.Contains(at[c.Slot], name) {
			at[c.Slot] = append(at[c.Slot], name)
		}
		choices = append(choices, c)
	}
	for slot, names := range at {
		if len(names) > 2 {
			t.Errorf("replica %d runs %v", slot, names)
		}
	}
	last := f.ask("g")
	choices = append(choices, last)
	pick := last.Decision.Pick()
	if pick.Adapter != decision.AdapterFull || pick.AdapterWait <= 0 || pick.AdapterLoad <= 0 || pick.TTFT < pick.AdapterTime() {
		t.Errorf("with all slots taken g costs %+v, its first token comes after %v s", pick.Adapting, pick.TTFT)
	}
	base := f.ask("")
	choices = append(choices, base)
	if base.Decision.Pick().Adapting != (decision.Adapting{}) {
		t.Errorf("a request without an adapter has %+v", base.Decision.Pick().Adapting)
	}
	for _, c := range choices {
		c.Release(done(decision.EndCompleted))
	}
	if again := f.ask("g"); again.Decision.Pick().Adapter == decision.AdapterFull {
		t.Error("all requests have ended, and no slot is free")
	} else {
		again.Release(done(decision.EndCompleted))
	}
	f.empty()
}

// A load counts as work of the rank: the next request sees it.
func TestALoadIsBooked(t *testing.T) {
	f := adapterFleet(t, 2)
	first := f.ask("a")
	load := first.Decision.Pick().AdapterLoad
	req := f.request(7, 256)
	req.Booking, req.Options.Pinned, req.Options.PinnedRank = chooser.DryRun, first.Replica.ID, -1
	if pick := f.choose(req).Decision.Pick(); pick.Backlog < float64(load) {
		t.Errorf("the rank loads for %v s, and its backlog is %v s", load, pick.Backlog)
	}
	first.Release(done(decision.EndCompleted))
	f.empty()
}

// A hot adapter is loaded on more replicas once it costs more to wait for it.
func TestAHotAdapterSpreads(t *testing.T) {
	f := adapterFleet(t, 4)
	at := map[replica.Slot]int{}
	var choices []*chooser.Choice
	for range 60 {
		req := f.request(1000+f.ids, 4000)
		req.Model, req.Adapter, req.NoQueue = "a", "a", true
		c := f.choose(req)
		at[c.Slot]++
		choices = append(choices, c)
	}
	if len(at) != 4 {
		t.Errorf("60 requests at once went to %v", at)
	}
	for _, c := range choices {
		c.Release(done(decision.EndCompleted))
	}
	f.empty()
}

// A recorded decision can be made again with the adapter's price.
func TestDecisionsWithAdaptersCanBeMadeAgain(t *testing.T) {
	f := adapterFleet(t, 3)
	for _, name := range []string{"a", "b", "c", "a", "d", "e", "f", "g"} {
		c := f.ask(name)
		var servers int
		for _, cand := range c.Decision.List() {
			if cand.Adapter != decision.AdapterNone {
				servers++
			}
		}
		if servers != 3 {
			t.Errorf("%s is priced on %d of 3 ranks", name, servers)
		}
		c.Release(done(decision.EndCompleted))
	}
}
