package ranks_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/ranks"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// follower records the calls to all followers.
type follower struct{ calls []string }

func (f *follower) note(format string, args ...any) {
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

func (f *follower) AddRank(slot replica.Slot, r *replica.Replica, rank int) {
	f.note("add %d %s/%d", slot, r.ID, rank)
}
func (f *follower) RemoveRank(slot replica.Slot)                        { f.note("remove %d", slot) }
func (f *follower) Changed()                                            { f.note("changed") }
func (f *follower) Heard(slot replica.Slot)                             { f.note("heard %d", slot) }
func (f *follower) ObserveStored(string, replica.Slot, *kvblock.Stored) { f.note("stored") }
func (f *follower) Retain(func(replica.ID) bool)                        { f.note("retain") }
func (f *follower) Drained(id replica.ID, _ *registry.Drain)            { f.note("drained %s", id) }
func (f *follower) Registered(spec registry.Spec, _ time.Duration)      { f.note("registered %s", spec.ID) }
func (f *follower) Deregistered(id replica.ID)                          { f.note("deregistered %s", id) }
func (f *follower) take() (calls []string)                              { calls, f.calls = f.calls, nil; return calls }

func newRanks(f ranks.Followers) *ranks.Ranks {
	r := ranks.New(ranks.Config{
		Registry: registry.DefaultConfig(), Index: kvindex.DefaultConfig(), Events: kvevents.DefaultConfig(), Stats: enginestats.DefaultConfig(), Load: load.DefaultConfig(),
	}, ranks.Params{})
	r.Join(f)
	return r
}

func TestARankIsKnownToAllPartsAndForgottenByThem(t *testing.T) {
	f := &follower{}
	r := newRanks(ranks.Followers{Chooser: f, Tokens: f, Breaker: f, Peers: f})
	of := &replica.Replica{ID: "a", Slots: []replica.Slot{3}, BlockSize: 16, Blocks: 100}
	r.RankAdded(3, of, 0)
	if s := r.Index.State(3); s != kvblock.FeedNone || r.InFlight(3) != 0 {
		t.Errorf("state %v: a rank without events has none", s)
	}
	if _, known := r.Stats.Stats(3); known {
		t.Error("statistics before the first report")
	}
	r.RankRemoved(3)
	if calls := f.take(); !slices.Equal(calls, []string{"add 3 a/0", "remove 3"}) {
		t.Error(calls)
	}
}

func TestAChangeWakesTheFollowersOnce(t *testing.T) {
	f := &follower{}
	r := newRanks(ranks.Followers{Chooser: f, Tokens: f, Breaker: f})
	r.FleetChanged(r.Registry.Snapshot())
	r.FleetChanged(r.Registry.Snapshot())
	if calls := f.take(); !slices.Equal(calls, []string{"retain", "changed", "retain", "changed"}) {
		t.Error(calls)
	}
	<-r.Changes()
	select {
	case <-r.Changes():
		t.Error("a second token for one change")
	default:
	}
	if err := r.Ready(); err == nil || err.Error() != "no replica is known" {
		t.Errorf("%v without a replica", err)
	}
}

func TestPeersAreInformedOfCallersChanges(t *testing.T) {
	f := &follower{}
	r := newRanks(ranks.Followers{Chooser: f, Tokens: f, Breaker: f, Peers: f})
	alone := newRanks(ranks.Followers{Chooser: f, Tokens: f, Breaker: f})
	for _, x := range []*ranks.Ranks{r, alone} {
		x.Drained("a", nil)
		x.Registered(registry.Spec{ID: "b"}, time.Minute)
		x.Deregistered("c")
	}
	if calls := f.take(); !slices.Equal(calls, []string{"drained a", "registered b", "deregistered c"}) {
		t.Error(calls)
	}
}
