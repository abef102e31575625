package programs

import (
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// find returns the program of a name in the list of all.
func (b *bed) find(name Name) (Program, bool) {
	for _, p := range b.List(&Filter{}, 1000, b.now) {
		if p.Name == name {
			return p, true
		}
	}
	return Program{}, false
}

// A program runs, is in its gap, loses its place, waits for memory, and is forgotten: the list says so each time.
func TestTheListFollowsAProgram(t *testing.T) {
	b := newBed(t, 1)
	b.teach("", seconds(8, 2)...)
	b.ranks[0].Held = 4_000
	is := func(when string, name Name, want State) Program {
		t.Helper()
		p, ok := b.find(name)
		if p.State != want || ok != (want != StateNone) {
			t.Errorf("%s: state %d, want %d", when, p.State, want)
		}
		return p
	}
	first := Call{Name: 1, Tenant: "team", Tokens: 30_000, Prompt: 29_000}
	place := b.begin(first)
	if p := is("in flight", 1, StateRunning); p.Slot != 0 || p.Resident != 30_000 || p.Needed != 30_000 || p.Calls != 1 || p.Prompt != 29_000 || p.Held != 4_000 || p.Tenant != "team" {
		t.Errorf("in flight: %+v", p)
	}
	place.End(31_000, false, false, b.now)
	b.now += time.Second
	if p := is("between calls", 1, StateGap); p.Idle != time.Second || p.Resident != 31_000 || p.Needed != 33_000 {
		t.Errorf("between calls: %+v, want a need of its context and the growth of 2,000", p)
	}
	big := b.begin(Call{Name: 2, Parent: 1, Tokens: 50_000, Prompt: 50_000})
	if big == nil {
		t.Fatal("the second program waits")
	}
	if p, _ := b.find(2); p.Parent != 1 {
		t.Errorf("the child's parent is %d", p.Parent)
	}
	grown := Call{Name: 2, Tokens: 95_000, Prompt: 95_000}
	big.End(50_000, false, false, b.now)
	b.Arrive(grown, b.now, horizon)
	big = b.Place(grown, b.ranks[0], b.now)
	if p := is("out of its place", 1, StatePaused); p.Slot != replica.NoSlot || p.Resident != 0 || p.Needed != 33_000 {
		t.Errorf("out of its place: %+v", p)
	}
	next := Call{Name: 1, Tokens: 33_000, Prompt: 32_000}
	if b.begin(next) != nil {
		t.Fatal("a paused program is admitted to a full rank")
	}
	b.now += 3 * time.Second
	if p := is("before memory", 1, StateWaiting); p.Wait != 3*time.Second || p.Needed != 33_000 || p.Calls != 1 || p.Idle != 0 {
		t.Errorf("before memory: %+v", p)
	}
	if s := b.Stats(false, b.now); s.Placed != 1 || s.Waiting != 1 || s.Paused != 0 || s.Taken != 1 || s.Needed(4) != 8 {
		t.Errorf("counts %+v", s)
	}
	b.Leave(1)
	big.End(95_000, true, false, b.now)
	is("ended", 2, StateNone)
	b.now += time.Hour
	is("after an hour", 1, StateNone)
}

func TestTheListIsInOrderAndFiltered(t *testing.T) {
	b := newBed(t, 2)
	b.teach("", seconds(8, 2)...)
	for name := Name(20); name > 0; name-- {
		c := Call{Name: name, Tenant: []string{"a", "b"}[name%2], Tokens: 100}
		b.Arrive(c, b.now, horizon)
		b.Admit(c, false, b.ranks, b.now)
		place := b.Place(c, b.ranks[name%2], b.now)
		if name > 10 {
			place.End(100, false, false, b.now)
		}
	}
	for what, c := range map[string]struct {
		f     Filter
		most  int
		count int
		first Name
	}{
		"all":             {Filter{}, 100, 20, 1},
		"three":           {Filter{}, 3, 3, 1},
		"behind 7":        {Filter{After: 7}, 100, 13, 8},
		"of a tenant":     {Filter{Own: true, Tenant: "a"}, 100, 10, 2},
		"of another one":  {Filter{Own: true, Tenant: "a", Of: "b"}, 100, 0, 0},
		"asked for":       {Filter{Of: "b"}, 100, 10, 1},
		"on a rank":       {Filter{Slots: []replica.Slot{0}}, 100, 10, 2},
		"on no rank":      {Filter{Slots: []replica.Slot{}}, 100, 0, 0},
		"between calls":   {Filter{States: []State{StateGap}}, 100, 10, 11},
		"of no tenant":    {Filter{Own: true}, 100, 0, 0},
		"behind the last": {Filter{After: ^Name(0)}, 100, 0, 0},
	} {
		list := b.List(&c.f, c.most, b.now)
		if len(list) != c.count || c.count > 0 && list[0].Name != c.first {
			t.Errorf("%s: %d programs %+v, want %d from %d on", what, len(list), list, c.count, c.first)
		}
		for i := 1; i < len(list); i++ {
			if list[i].Name <= list[i-1].Name {
				t.Errorf("%s: %d comes behind %d", what, list[i].Name, list[i-1].Name)
			}
		}
	}
}

// A program that another ledger placed is listed, and counted there.
func TestAdoptedProgramsAreCountedOnce(t *testing.T) {
	b := newBed(t, 1)
	b.teach("", seconds(8, 2)...)
	place := b.Adopt(Call{Name: 5, Tokens: 100}, b.ranks[0], b.now, horizon)
	if own, all := b.Stats(true, b.now), b.Stats(false, b.now); own.Placed != 0 || all.Placed != 1 {
		t.Errorf("its own %d of %d, want 0 of 1", own.Placed, all.Placed)
	}
	place.End(100, false, false, b.now)
	b.begin(call(5, 200))
	if own := b.Stats(true, b.now); own.Placed != 1 {
		t.Errorf("placed here: %d are its own, want 1", own.Placed)
	}
}
