package enginesim

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// writer makes up an answer: words chosen by the prompt's hash, in sentences, ended by the end
// token after a length of the same origin.
type writer struct {
	dice    *rand.Rand
	ids     []uint32
	length  int
	endless bool
	words   int // left in this sentence; zero starts one
	started bool
	// said is how much of the answer is the end of the prompt already.
	said int
}

type writerParams struct {
	prompt  []uint32
	variant uint64
	seed    *int64
	mean    int
	least   int
	endless bool
	forced  string
	// said counts the tokens of forced that end the prompt.
	said    int
	adapter string
}

func newWriter(p writerParams) *writer {
	// The last 64 tokens suffice to distinguish prompts, and cost the same for any length.
	tail := p.prompt[max(0, len(p.prompt)-64):]
	buf := binary.LittleEndian.AppendUint64(nil, uint64(len(p.prompt)))
	for _, id := range tail {
		buf = binary.LittleEndian.AppendUint32(buf, id)
	}
	hash := xxh3.Hash(append(buf, p.adapter...))
	if p.seed != nil {
		hash ^= uint64(*p.seed) * 0x9e3779b97f4a7c15
	}
	w := &writer{dice: rand.New(rand.NewPCG(hash, p.variant)), endless: p.endless}
	if p.forced != "" {
		w.ids = append(vocab.Encode(nil, p.forced), vocab.TurnEnd)
		w.length, w.said = len(w.ids)-1, p.said
		return w
	}
	w.length = max(p.least, p.mean/2+w.dice.IntN(p.mean+1))
	return w
}

// lookback is how long an answer may be to be recognised at the end of a prompt.
const lookback = 1024

// newContinuation is newWriter for a prompt of ids: where it ends in the beginning of this model's own answer to the ids before, the
// answer continues from there, as it would with a real model.
func newContinuation(p writerParams) *writer {
	if p.forced == "" {
		for at := len(p.prompt) - 1; at > 0 && at >= len(p.prompt)-lookback; at-- {
			if !vocab.Capital(p.prompt[at]) { // no answer begins with it
				continue
			}
			before := p
			before.prompt = p.prompt[:at]
			if w := newWriter(before); w.wrote(p.prompt[at:]) {
				w.said = len(p.prompt) - at
				return w
			}
		}
	}
	return newWriter(p)
}

// wrote reports whether the answer begins with ids.
func (w *writer) wrote(ids []uint32) bool {
	for i, id := range ids {
		if w.next(i) != id {
			return false
		}
	}
	return true
}

// next gives the token at place i; places are asked for in order.
func (w *writer) next(i int) uint32 {
	i += w.said
	if i == w.length && !w.endless {
		return vocab.TurnEnd
	}
	for len(w.ids) <= i {
		w.word()
	}
	return w.ids[i]
}

func (w *writer) word() {
	text := vocab.Word(w.dice.Uint64())
	if w.words == 0 {
		w.words = 5 + w.dice.IntN(10)
		text = strings.ToUpper(text[:1]) + text[1:]
		if w.started {
			w.ids = vocab.Encode(w.ids, ".")
		}
	}
	if w.started {
		text = " " + text
	}
	w.started = true
	w.words--
	w.ids = vocab.Encode(w.ids, text)
}
