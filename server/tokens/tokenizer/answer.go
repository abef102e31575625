package tokenizer

import (
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Answer has the known facts about the answer that a prompt continues with, when its beginning is the prompt of the turn before: the
// rank that gave it has computed its tokens, though which ids they are is not known until the whole prompt is.
type Answer struct {
	// Slot is the rank that gave the answer.
	Slot replica.Slot
	// Known is how many tokens of the prompt are known, Held how many the rank holds of it, the answer's last one excepted, which
	// it has not computed. Held is 0 when nothing is known of the answer, or when this model's next prompts do not repeat answers
	// as they were given (templates that leave thoughts out).
	Known, Held int
}

// answers learns whether the prompts of a model repeat answers as they were given. It is safe for concurrent use.
type answers struct{ score atomic.Int32 }

// scoreBound bounds how many prompts of one kind it takes to believe the other.
const scoreBound = 8

func (a *answers) repeated() bool { return a.score.Load() >= 0 }

func (a *answers) observe(repeated bool) {
	step := int32(-1)
	if repeated {
		step = 1
	}
	for {
		old := a.score.Load()
		if a.score.CompareAndSwap(old, min(max(old+step, -scoreBound), scoreBound)) {
			return
		}
	}
}

// answer has the known facts about the answer to k, when the prompt is one turn further.
func (k *known) answer(m *model) Answer {
	packed := k.entry.answered.Load()
	if packed == 0 || len(k.steps) != 1 || k.entry.root {
		return Answer{}
	}
	a := Answer{Slot: replica.Slot(packed>>32 - 1), Known: k.stable}
	if m.learned.answers.repeated() {
		a.Held = len(k.entry.ids) + int(uint32(packed)) - 1
	}
	return a
}

// Answered notes that a rank completed the only answer to the encoded prompt, of so many tokens: the next turn's
// prompt will find it there.
func (g *guard) Answered(pool string, enc *Encoding, slot replica.Slot, tokens int) {
	if enc == nil || enc.names == nil || tokens <= 0 || slot == replica.NoSlot {
		return
	}
	of := enc.names
	if enc.Partial {
		if enc.later == nil {
			return
		}
		e := g.mem.lookup(enc.whole, g.models.of(pool))
		if e == nil {
			return
		}
		of = e.names
	}
	of.answered.Store(uint64(slot+1)<<32 | uint64(uint32(tokens)))
}

// Repeated notes how many tokens of the whole prompt the rank that gave the answer in it was found to hold, once that is known.
func (g *guard) Repeated(pool string, enc *Encoding, held int) {
	a := &enc.Answer
	m := g.models.of(pool)
	if packed := enc.names.answered.Load(); a.Known > 0 && packed != 0 {
		answer := int(uint32(packed))
		m.learned.answers.observe(held-enc.names.length >= answer/2)
	}
}
