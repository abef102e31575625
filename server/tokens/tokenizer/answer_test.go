package tokenizer_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// The rank that answered a turn holds the answer, too, before the next turn's ids are known; where prompts turn out not to repeat
// answers, nothing more is counted on.
func TestTheAnswerOfTheTurnBefore(t *testing.T) {
	rep := serve(t, "a", &simulated{})
	pool := start(t, tokenizer.DefaultConfig())
	k := &talker{dice: rand.New(rand.NewPCG(1, 1))}
	turn := func() *tokenizer.Encoding {
		k.turn()
		enc := encode(t, pool, k.body(), rep)
		pool.WaitIdle()
		return enc
	}
	full := func() int { // the length of the whole prompt, once it is known
		return encode(t, pool, k.body(), rep).Tokens
	}
	for range 8 {
		turn()
	}
	if enc := turn(); !enc.Partial || enc.Answer != (tokenizer.Answer{}) {
		t.Fatalf("partial %v, answer %+v; want a known beginning without an answer", enc.Partial, enc.Answer)
	}
	enc := turn()
	for range 3 {
		before := full()
		pool.Answered("m", enc, 5, 40)
		enc = turn()
		if want := (tokenizer.Answer{Slot: 5, Known: len(enc.IDs), Held: before + 39}); enc.Answer != want {
			t.Fatalf("answer %+v, want %+v", enc.Answer, want)
		}
		pool.Repeated("m", enc, before+39)
	}
	pool.Answered("m", enc, replica.NoSlot, 40) // a rank that is gone
	pool.Answered("m", enc, 6, 0)
	full()
	if enc = turn(); enc.Answer != (tokenizer.Answer{}) {
		t.Fatalf("answer %+v of a rank that gave none", enc.Answer)
	}
	for range 8 {
		before := full()
		pool.Answered("m", enc, 5, 40)
		enc = turn()
		pool.Repeated("m", enc, before) // the template left the thoughts out
	}
	pool.Answered("m", enc, 5, 40)
	if enc = turn(); enc.Answer.Held != 0 || enc.Answer.Known == 0 {
		t.Errorf("answer %+v of a model whose prompts do not repeat answers", enc.Answer)
	}
}
