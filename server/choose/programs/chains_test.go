package programs

import (
	"math/rand/v2"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

// text is a prompt as block hashes: equal beginnings have equal hashes.
type text []blockhash.Hash

func (p text) and(blocks int, seed uint64) text {
	dice := rand.New(rand.NewPCG(seed, 1))
	for range blocks {
		p = append(p[:len(p):len(p)], blockhash.Hash(dice.Uint64()))
	}
	return p
}

func (p text) in(c *Chains, scope uint64) Found { return c.Find(scope, p, 16*len(p), false) }

func TestPromptsNameTheirProgram(t *testing.T) {
	c := NewChains()
	system := text(nil).and(300, 1)
	a, b := system.and(200, 2), system.and(90, 3)
	first, other := a.in(c, 7), b.in(c, 7)
	if first.Name == 0 || other.Name == 0 || first.Name == other.Name {
		t.Fatalf("two prompts with one beginning are programs %v and %v, want two", first, other)
	}
	if other.Parent != 0 {
		t.Error("a prompt that shares the instructions alone has a parent")
	}
	for turn := range 30 { // also beyond marks, and by less than a block to a mark
		a = a.and(1+turn*7, uint64(100+turn))
		if got := a.in(c, 7); got != first {
			t.Fatalf("turn %d is of program %v, want %v", turn, got, first)
		}
	}
	if got := b.and(20, 9).in(c, 7); got != other {
		t.Errorf("the other program's next call is of %v, want %v", got, other)
	}
	if got := a.and(5, 4).in(c, 8); got.Name == first.Name || got.Parent != 0 {
		t.Errorf("another tenant's prompt is of program %v", got)
	}
}

func TestForksAreChildren(t *testing.T) {
	c := NewChains()
	a := text(nil).and(400, 1)
	parent := a.in(c, 1)
	one, two := a.and(30, 2), a.and(40, 3)
	if got := one.in(c, 1); got != parent {
		t.Fatalf("the first that continues is %v, want the program %v", got, parent)
	}
	fork := two.in(c, 1)
	if fork.Name == parent.Name || fork.Parent != parent.Name {
		t.Fatalf("the second that continues is %v, want a child of %v", fork, parent)
	}
	if got := two.and(10, 5).in(c, 1); got.Name != fork.Name {
		t.Errorf("the fork's next call is %v, want %v", got, fork)
	}
	if got := one.and(10, 6).in(c, 1); got.Name != parent.Name {
		t.Errorf("the program's next call is %v, want %v", got, parent)
	}
}

func TestRepeatedAndShortPromptsAreNoPrograms(t *testing.T) {
	c := NewChains()
	a := text(nil).and(100, 1)
	first := a.in(c, 1)
	if got := a.in(c, 1); got != (Found{}) {
		t.Errorf("the same prompt again is of program %v, want none", got)
	}
	if got := c.Find(1, a, 16*len(a), true); got.Name != first.Name {
		t.Errorf("a retry is of program %v, want %v", got, first)
	}
	if got := c.Find(1, a, 16*len(a)+200, false); got.Name != first.Name {
		t.Errorf("a longer prompt with the end not known yet is of program %v, want %v", got, first)
	}
	if got := text(nil).and(markEach-1, 2).in(c, 1); got != (Found{}) {
		t.Errorf("a short prompt is of program %v", got)
	}
	if got := c.Find(1, nil, 100_000, false); got != (Found{}) {
		t.Errorf("a prompt without hashes is of program %v", got)
	}
}

func TestChainsAreBounded(t *testing.T) {
	c := NewChains()
	for i := range 3*maxChains + 10 {
		text(nil).and(markEach, uint64(i)).in(c, 1)
	}
	if n := len(c.young) + len(c.old); n > 2*maxChains {
		t.Errorf("%d prompts are remembered, want %d at most", n, 2*maxChains)
	}
	system := text(nil).and(markEach, 1)
	for i := range 100 {
		system.and(10, uint64(i)).in(c, 2)
	}
	n := 0
	for one := c.young[mark(2, system[markEach-1])]; one != nil; one = one.next {
		n++
	}
	if n > maxAlike {
		t.Errorf("%d prompts with one mark are remembered, want %d at most", n, maxAlike)
	}
}

func BenchmarkFind(b *testing.B) {
	c := NewChains()
	p := text(nil).and(8900, 1) // 142,000 tokens
	for b.Loop() {
		p.in(c, 1)
	}
}
