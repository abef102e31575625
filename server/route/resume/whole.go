package resume

import (
	"bytes"
	"errors"

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
	return w.read.Read(data, &w.chunk) && w.values.Take(&w.chunk)
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
