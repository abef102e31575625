package programs

import (
	"testing"
	"time"
)

// run has a session of n calls with a gap between each two.
func (b *bed) run(c Call, n int, gap time.Duration) {
	b.t.Helper()
	for range n {
		place := b.begin(c)
		if place == nil {
			b.t.Fatalf("session %d waits", c.Name)
		}
		place.End(c.Tokens, false, true, b.now) // it keeps no place: only its gaps count here
		b.now += gap
	}
	b.begin(c).End(c.Tokens, true, false, b.now)
}

const agents, chats = 11, 22 // the beginnings of their prompts

// teachFamilies runs sessions of one tenant: agents with quick gaps, chats with slow ones.
func (b *bed) teachFamilies() {
	b.t.Helper()
	for i := range 6 {
		b.run(Call{Name: Name(100 + i), Head: agents, Tokens: 10}, 12, 2*time.Second)
		b.run(Call{Name: Name(200 + i), Head: chats, Tokens: 10}, 3, 5*time.Minute)
	}
}

// A tenant's agents and chats are told apart by how their prompts begin: a new chat does not wait for memory, a new agent does.
func TestChatsAmongAgentsOfOneTenantDoNotWait(t *testing.T) {
	b := newBed(t, 1)
	b.teachFamilies()
	b.run(Call{Name: 300, Head: agents, Tokens: 10}, 12, 2*time.Second)
	first := b.begin(Call{Name: 1, Head: agents, Tokens: 70_000})
	if b.begin(Call{Name: 2, Head: agents, Tokens: 60_000}) != nil {
		t.Error("a new agent is admitted to a full rank")
	}
	if chat := b.begin(Call{Name: 3, Head: chats, Tokens: 60_000}); chat == nil {
		t.Error("a new chat waits for memory")
	}
	first.End(70_000, true, false, b.now)
}

// Sessions whose beginning is not known are like the others of their class whose beginning is not: agents with common instructions are
// none of these.
func TestAnUnknownBeginningIsNotLikeTheKnownOnes(t *testing.T) {
	b := newBed(t, 1)
	for i := range 40 { // chats without common instructions
		b.run(Call{Name: Name(1000 + i), Head: uint64(5000 + i), Tokens: 10}, 2, 5*time.Minute)
		b.run(Call{Name: Name(2000 + i), Head: agents, Tokens: 10}, 12, 2*time.Second)
	}
	b.begin(Call{Name: 1, Head: agents, Tokens: 70_000})
	if b.begin(Call{Name: 2, Head: 77, Tokens: 60_000}) == nil {
		t.Error("a chat with a beginning of its own waits for memory, as if it were an agent")
	}
	if b.begin(Call{Name: 3, Head: agents, Tokens: 60_000}) != nil {
		t.Error("an agent is admitted to a full rank")
	}
}

// Beginnings that occur once do not fill the memory, nor push out those that are in use.
func TestFamiliesAreBounded(t *testing.T) {
	var f families
	used := f.of(&Call{Head: 1})
	used.sessions = knownFrom
	for i := range 5 * maxFamilies {
		f.of(&Call{Head: uint64(i + 10)})
		if i%1000 == 0 && f.of(&Call{Head: 1}) != used {
			t.Fatalf("a family that is in use is forgotten after %d others", i)
		}
	}
	if n := len(f.young) + len(f.old); n > 2*maxFamilies {
		t.Errorf("%d families are kept, want at most %d", n, 2*maxFamilies)
	}
	if f.of(&Call{}) != nil {
		t.Error("a call without a beginning has a family")
	}
	if a, b := f.of(&Call{Class: "a", Head: 7}), f.of(&Call{Class: "b", Head: 7}); a == b {
		t.Error("two tenants are one family")
	}
}
