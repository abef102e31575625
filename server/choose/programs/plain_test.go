package programs

import (
	"testing"
	"time"
)

// fill has programs begin until one waits, and returns that one.
func (b *bed) fill() Call {
	b.t.Helper()
	b.teach("agents", seconds(8, 1)...)
	for name := Name(100); name < 200; name++ {
		c := Call{Name: name, Class: "agents", Tokens: 20_000}
		if b.begin(c) == nil {
			return c
		}
	}
	b.t.Fatal("no program waits")
	return Call{}
}

// chat serves calls that bring so many seconds of work, of sessions that do not return soon, on all ranks in turn.
func (b *bed) chat(calls int, work float64) {
	b.t.Helper()
	for i := range calls {
		r := b.ranks[i%len(b.ranks)]
		r.Work = work
		c := Call{Name: Name(1000 + i), Class: "chats", Tokens: 100}
		b.Arrive(c, b.now, horizon)
		b.Place(c, r, b.now).End(100, false, false, b.now)
		b.now += time.Second
	}
}

// open counts the ranks that a program would be admitted to if all had room.
func (b *bed) open(waits Call) int {
	b.t.Helper()
	for i := range b.ranks {
		b.ranks[i].Full, b.ranks[i].Capacity = false, 10*capacity
	}
	b.Admit(waits, true, b.ranks, b.now) // behind others: it gets no place
	n := 0
	for _, r := range b.ranks {
		if !r.Full {
			n++
		}
	}
	return n
}

// plainClass teaches that sessions of the class do not return soon.
func (b *bed) plainClass() {
	b.teach("chats", seconds(plainFrom+4, 2*horizon.Seconds())...)
}

func TestWhileProgramsWaitRanksAreKeptForChats(t *testing.T) {
	b := newBed(t, 4)
	b.plainClass()
	b.chat(240, 1.5) // for more than two ranks' time
	waits := b.fill()
	for range 10 {
		b.open(waits)
	}
	if n := b.open(waits); n != 2 {
		t.Errorf("programs are admitted to %d of 4 ranks next to many chats, want half", n)
	}
	pinned := b.ranks
	for _, r := range pinned { // a program that may go to one rank alone is not kept away
		b.ranks = []Rank{r}
		if n := b.open(waits); n != 1 {
			t.Errorf("rank %d is kept from a program that has no other", r.Slot)
		}
	}
	b.ranks = pinned
	if n := b.open(waits); n != 2 {
		t.Errorf("then programs are admitted to %d of 4 ranks, want half", n)
	}
	b.Leave(waits.Name)
	b.now += 2 * pressedFor
	if next := (Call{Name: 300, Class: "agents", Tokens: 1}); b.Arrive(next, b.now, horizon) {
		if n := b.open(next); n != 4 {
			t.Errorf("a minute after the last wait programs are admitted to %d of 4 ranks, want all", n)
		}
	} else {
		t.Error("the session is no program")
	}
}

func TestFewChatsKeepNoRank(t *testing.T) {
	for name, serve := range map[string]func(*bed){
		"none":              func(*bed) {},
		"little work":       func(b *bed) { b.chat(240, 0.1) },
		"an unknown class":  func(b *bed) { b.chatUnknown(240) },
		"chats of long ago": func(b *bed) { b.chat(240, 1.5); b.now += 10 * plainOver },
	} {
		b := newBed(t, 4)
		if name != "an unknown class" {
			b.plainClass()
		}
		serve(b)
		waits := b.fill()
		for range 10 {
			b.open(waits)
		}
		if n := b.open(waits); n != 4 {
			t.Errorf("%s: programs are admitted to %d of 4 ranks, want all", name, n)
		}
	}
}

// chatUnknown serves first calls of as many sessions: whether they return soon is not known.
func (b *bed) chatUnknown(calls int) {
	for i := range calls {
		r := b.ranks[i%len(b.ranks)]
		r.Work = 1.5
		c := Call{Name: Name(1000 + i), Class: "new", Tokens: 100}
		b.Arrive(c, b.now, horizon)
		b.Place(c, r, b.now)
		b.now += time.Second / 100
	}
}

func TestCallsWithoutASessionArePlain(t *testing.T) {
	b := newBed(t, 4)
	for i := range 240 {
		r := b.ranks[i%4]
		r.Work = 1.5
		b.Plain(r, b.now)
		b.now += time.Second
	}
	waits := b.fill()
	for range 10 {
		b.open(waits)
	}
	if n := b.open(waits); n != 2 {
		t.Errorf("programs are admitted to %d of 4 ranks, want half", n)
	}
}
