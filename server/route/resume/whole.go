package resume

import (
	"bytes"
	"errors"
	"strconv"

	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// ErrNotWhole is why no answer in one piece can be made of a stream: it is not one plain text, or the engine reported an error in it.
var ErrNotWhole = errors.New("the engine's stream is not that of an answer which can be given in one piece")

// Whole makes of a stream the answer that the engine would have given in one piece. It takes the events of a Follower, and holds the text.
// It belongs to one goroutine.
type Whole struct {
	form   *openai.WholeForm
	read   openai.Chunks
	chunk  openai.Chunk
	values openai.Whole
	held   []byte
	done   bool
	// ids are the answer's, and prompt is the raw list of the prompt's, of an answer that a parser takes apart.
	ids    []uint32
	prompt []byte
}

// NewWhole makes a Whole that writes answers in a form.
func NewWhole(form *openai.WholeForm) *Whole { return &Whole{form: form} }

// Feed takes the next bytes. Its error is ErrNotWhole.
func (w *Whole) Feed(piece []byte) error {
	data := piece
	if len(w.held) > 0 {
		w.held = append(w.held, piece...)
		data = w.held
	}
	for {
		n := bytes.Index(data, []byte("\n\n"))
		if n < 0 {
			break
		}
		if !w.event(data[:n+2]) {
			return ErrNotWhole
		}
		data = data[n+2:]
	}
	if len(data) > maxEvent {
		return ErrNotWhole
	}
	w.held = append(w.held[:0], data...)
	return nil
}

// event takes one event. It returns false when that is no part of a plain text.
func (w *Whole) event(e []byte) bool {
	if !w.withdraw(e) {
		return false
	}
	if e = withoutComments(e); len(e) == 0 {
		return true
	}
	head, data, ok := cutEvent(e)
	switch {
	case !ok || len(head) > 0:
		return false
	case string(data) == "[DONE]":
		w.done = true
		return true
	}
	if !w.read.Read(data, &w.chunk) {
		return false
	}
	if w.form.Parsed() {
		return w.parsed(&w.chunk)
	}
	return w.values.Take(&w.chunk)
}

// parsed takes an event of an answer that a parser takes apart, with its ids.
func (w *Whole) parsed(c *openai.Chunk) bool {
	if c.PromptIDs != nil && w.prompt == nil {
		w.prompt = bytes.Clone(c.PromptIDs)
	}
	if c.IDs != nil && !openai.EachID(c.IDs, func(id uint32) bool { w.ids = append(w.ids, id); return len(w.ids) <= MaxTokens }) {
		return false
	}
	return w.values.TakeParsed(c)
}

// withdraw takes back the last ids, where the event is a comment that says so. It returns false when there are not so many.
func (w *Whole) withdraw(e []byte) bool {
	text, ok := bytes.CutPrefix(bytes.TrimSpace(e), []byte(withdrawn))
	if !ok {
		return true
	}
	n, err := strconv.Atoi(string(text))
	if err != nil || n < 0 || n > len(w.ids) {
		return false
	}
	w.ids = w.ids[:len(w.ids)-n]
	return true
}

// Question is the question to an engine's parser for the answer to the request chat, where a parser takes it apart; nil for any other answer, and for one without tokens.
func (w *Whole) Question(model string, chat []byte) []byte {
	if !w.form.Parsed() || !w.done || len(w.ids) == 0 || w.prompt == nil {
		return nil
	}
	return openai.DerenderWhole(model, chat, w.prompt, w.ids, w.values.Finish, w.values.Stop)
}

// Parsed reports whether a parser takes the answer apart, so that the answer needs that to Question.
func (w *Whole) Parsed() bool { return w.form.Parsed() }

// Take takes the answer to the Question. The text of a request without tools must be the stream's: the parser's engine may keep special tokens in it. Its error is ErrNotWhole.
func (w *Whole) Take(answer []byte, tools bool) error {
	choices, text := openai.ReadDerenderedWhole(answer, w.values.Finish)
	if choices == nil || !tools && text != string(w.values.Text) {
		return ErrNotWhole
	}
	w.values.Choices = bytes.Clone(choices)
	return nil
}

// Failed reports whether the stream ended with an error of the engine.
func (w *Whole) Failed() bool { return w.chunk.Fault > 0 }

// Answer returns the answer, once the stream is over. Continued says that several replicas wrote it.
func (w *Whole) Answer(continued bool) ([]byte, error) {
	if !w.done {
		return nil, ErrNotWhole
	}
	answer, ok := w.form.Append(make([]byte, 0, len(w.values.Text)+1024), &w.values, continued)
	if !ok {
		return nil, ErrNotWhole
	}
	return answer, nil
}
