package tokenizer_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// taught is a pool that trusts the turns of conversations, after some whole ones.
func taught(t *testing.T, r *simulated) (*tokenizer.Pool, *replica.Replica) {
	t.Helper()
	rep := serve(t, "a", r)
	pool := start(t, tokenizer.DefaultConfig())
	for c := range 3 {
		k := &talker{dice: rand.New(rand.NewPCG(uint64(c), 17))}
		for range 12 {
			k.turn()
			encode(t, pool, k.body(), rep)
			pool.WaitIdle()
		}
	}
	return pool, rep
}

// apart plays a conversation of which the pool sees some turns only, because other routers have the others.
func apart(t *testing.T, pool *tokenizer.Pool, rep *replica.Replica, seed uint64, see func(body string, turns int)) {
	t.Helper()
	dice := rand.New(rand.NewPCG(seed, 19))
	k := &talker{dice: rand.New(rand.NewPCG(seed, 23))}
	since := 0
	for turn := range 16 {
		k.turn()
		since++
		if turn == 0 || dice.IntN(3) == 0 {
			see(k.body(), since)
			pool.WaitIdle()
			since = 0
		}
	}
}

// A prompt of which only an older beginning is known waits for all its ids; one that is a turn further is answered early.
func TestAnOlderBeginningIsCompletedFirst(t *testing.T) {
	r := &simulated{render: true}
	pool, rep := taught(t, r)
	fresh := tokenizer.DefaultConfig()
	fresh.CacheBytes = 0
	oracle, truth := start(t, fresh), serve(t, "truth", &simulated{render: true})
	older, next, asked, all := 0, 0, int64(0), int64(0)
	for c := range 8 {
		apart(t, pool, rep, uint64(c), func(body string, turns int) {
			want := encode(t, oracle, body, truth).IDs
			before := r.encoded.Load()
			got := encode(t, pool, body, rep)
			switch {
			case !slices.Equal(got.IDs, want[:len(got.IDs)]):
				t.Fatalf("%d ids from %s are not the beginning", len(got.IDs), got.Source)
			case turns == 1 && got.Partial:
				next++
			case turns > 1 && (got.Partial || !got.Exact || len(got.IDs) != len(want)):
				t.Errorf("%d turns after the known one: %d of %d ids (exact %v)", turns, len(got.IDs), len(want), got.Exact)
			case turns > 1:
				older++
				asked, all = asked+r.encoded.Load()-before, all+int64(len(want))
			}
		})
	}
	if older < 10 || next < 5 {
		t.Errorf("%d prompts had an older beginning and were completed, %d with the turn before were answered early", older, next)
	}
	if asked > all*2/3 {
		t.Errorf("%d tokens were asked for, the prompts had %d: known beginnings were not used", asked, all)
	}
}

// A tokenizer that does not answer, or fails, leaves the older beginning.
func TestAnOlderBeginningIsEnoughWhenTokenizersAreNot(t *testing.T) {
	for name, faults := range map[string]enginesim.Faults{"hangs": {Hang: true}, "fails": {Status: 500}} {
		t.Run(name, func(t *testing.T) {
			r := &simulated{render: true}
			pool, rep := taught(t, r)
			k := &talker{dice: rand.New(rand.NewPCG(1, 29))}
			for range 3 {
				k.turn()
				encode(t, pool, k.body(), rep)
				pool.WaitIdle()
			}
			for range 3 {
				k.turn()
			}
			r.SetFaults(faults)
			enc := encode(t, pool, k.body(), rep)
			if enc.Source != tokenizer.SourceConversation || !enc.Partial || len(enc.IDs) == 0 {
				t.Errorf("%d ids from %s (%q), partial %v; want the older beginning", len(enc.IDs), enc.Source, enc.Reason, enc.Partial)
			}
		})
	}
}
