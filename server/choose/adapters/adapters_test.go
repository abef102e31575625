package adapters_test

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/adapters"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
)

// two is a report of an engine with two slots.
func two(running ...string) *enginestats.Adapters {
	return &enginestats.Adapters{Slots: 2, Running: append([]string{}, running...)}
}

// at is an adapter's place on slot 0 of an engine that lists many, at a second.
func at(f *adapters.Fleet, adapter string, second int, report *enginestats.Adapters) decision.Adapting {
	look := f.Look(adapter, 10, time.Duration(second)*time.Second)
	defer look.Done()
	return look.At(adapters.Rank{Listed: 50, Report: report})
}

func TestAnAdapterIsWhereTheEngineHasIt(t *testing.T) {
	var f adapters.Fleet
	expect := func(adapter string, second int, report *enginestats.Adapters, want decision.AdapterState) decision.Adapting {
		t.Helper()
		got := at(&f, adapter, second, report)
		if got.Adapter != want {
			t.Errorf("second %d: %s is %q, want %q", second, adapter, got.Adapter, want)
		}
		return got
	}
	if first := expect("a", 0, two(), decision.AdapterAbsent); first.AdapterLoad <= 0 || first.AdapterWait != 0 || first.AdapterLoss != 0 {
		t.Errorf("an adapter on an idle engine with free slots costs %+v", first)
	}
	a := f.Book("a", 0, time.Second)
	if running := expect("a", 2, nil, decision.AdapterRunning); running.AdapterTime() != 0 {
		t.Errorf("an adapter that runs costs %+v", running)
	}
	a.End(3 * time.Second)
	if idle := expect("a", 4, nil, decision.AdapterResident); idle.AdapterTime() != 0 {
		t.Errorf("an adapter in memory costs %+v", idle)
	}
	b := f.Book("b", 0, 5*time.Second)
	c := f.Book("c", 0, 6*time.Second) // in place of a, which is idle
	expect("a", 7, nil, decision.AdapterFull)
	c.End(8 * time.Second)
	lost := expect("a", 9, nil, decision.AdapterAbsent)
	if lost.AdapterLoss <= 0 {
		t.Errorf("in place of an adapter that was used, it costs %+v", lost)
	}
	b.End(10 * time.Second)
	f.Unloaded(0, "b")
	expect("b", 11, nil, decision.AdapterAbsent)
	f.Loaded(0, "b", 12*time.Second)
	expect("b", 13, nil, decision.AdapterResident)
	expect("d", 14, two("d", "e"), decision.AdapterRunning) // others sent requests
	expect("b", 15, nil, decision.AdapterFull)
	expect("b", 16, two(), decision.AdapterAbsent) // d and e were last
	expect("e", 17, nil, decision.AdapterResident)
	f.Remove(0)
	expect("e", 18, two(), decision.AdapterAbsent)
}

// Requests that came first have their slots first; those that wait are no reason to think that a running one waits.
func TestASlotIsWaitedForInTheOrderOfArrival(t *testing.T) {
	var f adapters.Fleet
	at(&f, "a", 0, two())
	for i, name := range []string{"a", "b", "c"} {
		f.Book(name, 0, time.Duration(i+1)*time.Second)
	}
	for name, want := range map[string]decision.AdapterState{"a": decision.AdapterRunning, "b": decision.AdapterRunning, "c": decision.AdapterFull, "d": decision.AdapterFull} {
		if got := at(&f, name, 5, nil); got.Adapter != want {
			t.Errorf("%s is %q, want %q", name, got.Adapter, want)
		}
	}
	behind, first := at(&f, "d", 5, nil), at(&f, "c", 5, nil)
	if first.AdapterWait <= 0 || behind.AdapterWait <= first.AdapterWait {
		t.Errorf("c waits %v s, d behind it %v s", first.AdapterWait, behind.AdapterWait)
	}
	for range 3 {
		f.Book("a", 0, 5*time.Second)
		f.Book("b", 0, 5*time.Second)
	}
	if longer := at(&f, "c", 5, nil); longer.AdapterWait <= first.AdapterWait {
		t.Errorf("behind adapters with four requests each c waits %v s, with one each %v s", longer.AdapterWait, first.AdapterWait)
	}
}

func TestWhatIsNotKnownIsNotPriced(t *testing.T) {
	var f adapters.Fleet
	look := f.Look("a", 10, 0)
	if p := look.At(adapters.Rank{Listed: 2, Report: two()}); p.Adapter != decision.AdapterResident {
		t.Errorf("an engine with a slot for each of its adapters has one %q", p.Adapter)
	}
	if p := look.At(adapters.Rank{Slot: 1, Listed: 2}); p.Adapter != decision.AdapterAbsent || p.AdapterLoss != 0 {
		t.Errorf("without a report it is %+v", p)
	}
	look.Done()
	for i := range 1000 { // of an engine that does not say how many it has
		b := f.Book(fmt.Sprint("x", i), 1, time.Duration(i)*time.Second)
		b.End(time.Duration(i) * time.Second)
	}
	for _, h := range f.Ranks() {
		if h.Resident > 256 {
			t.Errorf("the record of a rank has %d adapters", h.Resident)
		}
	}
	if n := len(f.Demands(2000 * time.Second)); n > 700 {
		t.Errorf("%d names are kept", n)
	}
}

// A new engine process has nothing; requests that ended with the old one are still to be reported.
func TestARestartForgetsWhatTheEngineHad(t *testing.T) {
	var f adapters.Fleet
	at(&f, "a", 0, two())
	old := f.Book("a", 0, time.Second)
	f.Loaded(0, "b", time.Second)
	look := f.Look("b", 10, 2*time.Second)
	p := look.At(adapters.Rank{Life: 1, Listed: 50, Report: two()})
	look.Done()
	if p.Adapter != decision.AdapterAbsent {
		t.Errorf("after a restart b is %q", p.Adapter)
	}
	old.End(3 * time.Second)
	look = f.Look("a", 10, 4*time.Second)
	defer look.Done()
	if p := look.At(adapters.Rank{Life: 1, Listed: 50}); p.Adapter == decision.AdapterRunning {
		t.Error("a request of the former process runs for good")
	}
}

func TestTheTimeOfALoadIsLearned(t *testing.T) {
	var f adapters.Fleet
	b := f.Book("a", 0, 0)
	for range 60 {
		b.Learn(1.5)
	}
	if got := float64(at(&f, "x", 1, two()).AdapterLoad); math.Abs(got-1.5) > 0.05 {
		t.Errorf("loads of 1.5 s are expected to take %v s", got)
	}
	before := at(&f, "x", 1, nil).AdapterLoad
	b.Learn(1e9) // a token that something else delayed
	if after := at(&f, "x", 1, nil).AdapterLoad; after > 1.3*before {
		t.Errorf("one late token made %v s of %v s", after, before)
	}
	b.Learn(-5)
	slow := f.Book("a", 3, 0)
	for range 20 {
		slow.Learn(20)
		for range 10 {
			b.Learn(1.5)
		}
	}
	look := f.Look("x", 10, time.Second)
	defer look.Done()
	if other := look.At(adapters.Rank{Slot: 7, Listed: 50}).AdapterLoad; other < 1 || other > 4 {
		t.Errorf("a rank without a load of its own is expected to take %v s", other)
	}
	if own := look.At(adapters.Rank{Slot: 3, Listed: 50}).AdapterLoad; own < 10 {
		t.Errorf("a rank with loads of 20 s is expected to take %v s", own)
	}
	var none adapters.Booking
	none.Learn(1)
	none.End(0)
}

// The scarcer slots are in the fleet, the dearer it is to take one more.
func TestSlotsAreDearWhenTheyAreScarce(t *testing.T) {
	loss := func(busy int) float32 {
		var f adapters.Fleet
		look := f.Look("x", 10, 0)
		for slot := range 4 {
			look.At(adapters.Rank{Slot: replica.Slot(slot), Listed: 50, Report: two()})
		}
		look.Done()
		for i := range busy {
			f.Book(fmt.Sprint("a", i), replica.Slot(i/2), 0)
		}
		look = f.Look("x", 10, time.Second)
		defer look.Done()
		return look.At(adapters.Rank{Slot: 3, Listed: 50}).AdapterLoss
	}
	if none, some, most := loss(0), loss(4), loss(7); none != 0 || some <= none || most <= some {
		t.Errorf("with 0, 4 and 7 of 8 slots in use one more costs %v, %v and %v s", none, some, most)
	}
}

func TestManyAtOnce(t *testing.T) {
	var f adapters.Fleet
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			for i := range 300 {
				now := time.Duration(i) * time.Millisecond
				name, slot := fmt.Sprint("a", (n+i)%9), replica.Slot(i%3)
				look := f.Look(name, 10, now)
				look.At(adapters.Rank{Slot: slot, Listed: 50, Report: two("a1")})
				look.Done()
				b := f.Book(name, slot, now)
				b.Learn(0.2)
				b.End(now)
				if i%50 == 0 {
					f.Remove(slot)
					f.Demands(now)
					f.Ranks()
				}
			}
		})
	}
	wg.Wait()
	for _, h := range f.Ranks() {
		if h.Running > 1 || h.Resident > 2 { // a1 runs by the report
			t.Errorf("afterwards %+v", h)
		}
	}
}
