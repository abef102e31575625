package fleet

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/test/stack"
)

// forked sends calls that begin with a prompt to all routers at once, and counts those that did not find it.
func forked(t *testing.T, routers []*stack.Stack, dice *rand.Rand, prompt []uint32, n int) (short int) {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	for i := range n {
		ids := append(prompt[:len(prompt):len(prompt)], someIDs(dice, 300)...)
		all.Go(func() {
			_, _, cached, err := completed(routers[i%len(routers)], ids, 4)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("branch %d: %v", i, err)
			}
			if cached < len(prompt)-16 {
				short++
			}
		})
	}
	all.Wait()
	return short
}

// Once calls have been forked, the prompt of the next one is in every cache when it has been answered. Of calls that are not forked nothing is copied.
func TestPromptsAreCopiedAheadOfForks(t *testing.T) {
	stack.Aside(t)
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d routers", n), func(t *testing.T) {
			routers := passing(t, "nixl", n, 3, 4, func(*config.Config) {})
			dice := rand.New(rand.NewPCG(3, 32))
			call := func(tokens int) []uint32 {
				prompt := someIDs(dice, 16_000)
				if _, _, _, err := completed(routers[dice.IntN(n)], prompt, tokens); err != nil {
					t.Fatal(err)
				}
				return prompt
			}
			ahead := func() float64 { return sumOf(t, routers, "kvpilot_chooser_copies_ahead_total") }
			for range 6 { // the speed of each replica
				call(2)
			}
			if got := ahead(); got != 0 {
				t.Errorf("%v copies of the prompts of calls that were not forked", got)
			}
			for range 3 {
				forked(t, routers, dice, call(2), 16)
			}
			done := func() float64 { return sumOf(t, routers, `kvpilot_router_copies_total{result="done"}`) }
			before, begun := done(), ahead()
			prompt := call(400)
			eventually(t, "the prompt is copied to two replicas", func() bool { return done()-before >= 2 && ahead()-begun >= 2 })
			short := forked(t, routers, dice, prompt, 16)
			if made := done() - before; made != 2 || short > 0 {
				t.Errorf("%v copies of one prompt to two replicas, %d of 16 branches did not find it", made, short)
			}
			if failed := sumOf(t, routers, `kvpilot_router_copies_total{result="source"}`) + sumOf(t, routers, `kvpilot_router_copies_total{result="target"}`) + sumOf(t, routers, `kvpilot_router_copies_total{result="mismatch"}`); failed != 0 {
				t.Errorf("%v copies failed", failed)
			}
			eventually(t, "nothing is booked", func() bool { return sumOf(t, routers, "kvpilot_load_requests") == 0 })
		})
	}
}
