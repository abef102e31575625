package resume

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// tokens are the ids of a stream, and how far the client has their text.
type tokens struct {
	prompt []uint32 // the engine's; Known while they are the same
	ids    []uint32 // of the answer, as far as the client has their events
	// promptTokens and answered count both, also when they are no longer remembered; blind: not all are counted.
	promptTokens, answered int
	// safe counts the ids of which the client has the text, the last of which came together. sure: the detokenizer holds back none of that text.
	safe, last int
	sure       bool
	// parsed: the engine has a parser between detokenizer and stream, which may hold text back too.
	parsed, blind bool
	// shows: the client gets the ids, too.
	shows bool
	// shown is the end of the text that the client has.
	shown []byte
}

// PromptTokens is how many token ids the engine gave of the prompt, 0 as long as it gave none.
func (t *tokens) PromptTokens() int { return t.promptTokens }

// take remembers a raw list of ids; false when it is none, or too long.
func (t *tokens) take(ids []byte) bool {
	return openai.EachID(ids, func(id uint32) bool { t.ids = append(t.ids, id); return true })
}

// tooMany reports whether there are more tokens than are remembered.
func (t *tokens) tooMany() bool { return len(t.prompt)+len(t.ids) > MaxTokens }

// withdrawn begins a comment for a client that keeps the ids: so many of the last ones, which showed nothing, are drawn again.
const withdrawn = ": ids -"

// withdrawal is the comment that withdraws n ids.
func withdrawal(n int) []byte { return fmt.Appendf(nil, "%s%d\n\n", withdrawn, n) }

// withdraw forgets the ids that a comment withdraws; any other comment changes nothing.
func (t *tokens) withdraw(comment []byte) {
	text, ok := strings.CutPrefix(strings.TrimSpace(string(comment)), withdrawn)
	if n, err := strconv.Atoi(text); ok && err == nil && n > 0 && len(t.ids)-n >= t.safe {
		t.ids = t.ids[:len(t.ids)-n]
		t.answered = len(t.ids)
	}
}

// settle notes that text, raw JSON, came with so many ids: unless it is empty, nothing of the ids before is missing in it.
func (t *tokens) settle(text []byte, ids int) bool {
	if len(text) <= len(`""`) {
		return false
	}
	t.safe, t.last, t.sure = len(t.ids), ids, ids == 1 && !t.parsed
	return true
}

// readPrompt takes the engine's ids of the prompt, and keeps those of known while they are the same. It returns why they cannot be taken.
func (t *tokens) readPrompt(raw []byte, known []uint32) Lost {
	n, same := 0, true
	var own []uint32
	ok := openai.EachID(raw, func(id uint32) bool {
		if same && (n >= len(known) || known[n] != id) {
			same = false
			own = append(make([]uint32, 0, max(n+1, len(raw)/6)), known[:n]...)
		}
		if !same {
			own = append(own, id)
		}
		n++
		return n <= MaxTokens
	})
	switch {
	case !ok && n > MaxTokens:
		return LostSize
	case !ok || n == 0:
		return LostIDs
	case same:
		own = known[:n:n]
	}
	t.prompt, t.promptTokens = own, n
	return NotLost
}

// keptText is the length of the kept text: more than the tail of a Point.
const keptText = 512

// show remembers the text, raw JSON, that the client gets with so many ids. Stops may be nil.
func (t *tokens) show(text []byte, ids int, stops *stops) {
	if !t.settle(text, ids) {
		return
	}
	before := len(t.shown)
	t.shown = openai.AppendText(t.shown, text)
	kept := keptText
	if stops != nil {
		stops.count(t.shown[before:], t.safe, t.sure)
		kept = stops.kept
	}
	t.shown = lastBytes(t.shown, kept)
}

// lastBytes drops the beginning of text when it is twice as long as what is kept.
func lastBytes(text []byte, kept int) []byte {
	if n := len(text); n > 2*kept {
		return text[:copy(text, text[n-kept:])]
	}
	return text
}
