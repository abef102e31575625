package registry

import (
	"fmt"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// fleetOf makes entries of n ready replicas with two models and two ranks each.
func fleetOf(n int) map[replica.ID]*entry {
	entries := make(map[replica.ID]*entry, n)
	var slots slotPool
	for i := range n {
		id := replica.ID(fmt.Sprintf("replica-%04d", i))
		e := newEntry(listing{spec: Spec{ID: id, URL: "http://h", Ranks: 2}, source: sourceStatic})
		e.slots, e.report.models = slots.take(2), []replica.Model{{ID: "base"}, {ID: fmt.Sprint("tune", i%10), Parent: "base"}}
		e.health.state = replica.StateReady
		e.rebuild(nil)
		entries[id] = e
	}
	return entries
}

// What each published change costs the registry in a fleet of 1,000.
func BenchmarkNewSnapshot1000(b *testing.B) {
	entries := fleetOf(1000)
	b.ReportAllocs()
	for b.Loop() {
		newSnapshot(entries, map[string]string{"short": "base"})
	}
}

// What a request pays to find its pool.
func BenchmarkPool(b *testing.B) {
	s := newSnapshot(fleetOf(1000), nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := s.Pool("base"); !ok {
			b.Fatal("no pool")
		}
	}
}

func TestLookingUpAPoolAllocatesNothing(t *testing.T) {
	s := newSnapshot(fleetOf(10), nil)
	r := s.Replicas[3]
	if n := testing.AllocsPerRun(100, func() {
		s.Pool("base")
		s.Replica(r.ID)
		s.BySlot(r.Slots[1])
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
