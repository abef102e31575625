package resume

import (
	"bytes"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// client is the client's stream: how its events begin, and how far it is.
type client struct {
	// finished: it has its finish reason, usage: it has its usage, done: it has its last event.
	finished, usage, done bool
	// counted: it ends with its usage.
	counted bool
	// stamp is the stamp of the stream's end.
	stamp openai.Stamp
	api   prompt.API
	// head is what its events begin with.
	head []byte
	// out is what is to be sent next.
	out []byte
	// Halted reports whether the engine has aborted an answer of /v1/responses that claims to be whole, since it looks so; nil when that is not known.
	Halted func() bool
}

// Stamp is the stamp of the stream's end, as far as an engine has written it. Details that no engine has written are not set.
func (s *client) Stamp() openai.Stamp { return s.stamp }

// Seal sets the stamp of an end that the engine under way does not write.
func (s *client) Seal(with openai.Stamp) { s.stamp = with }

// stamped notes the stamp of an engine's own end.
func (s *client) stamped(c *openai.Chunk) {
	if with := c.Stamp(); with.Fingerprint != nil || with.Details {
		with.Fingerprint = bytes.Clone(with.Fingerprint)
		s.stamp = with
	}
}

// Done reports whether the client has the end of its stream.
func (s *client) Done() bool { return s.done }

// words are those in which a continuation is written into the stream.
func (s *client) words(t *tokens) openai.Continued {
	return openai.Continued{API: s.api, Head: s.head, PromptTokens: t.promptTokens, OutputTokens: t.answered, Shown: t.shows}
}

// write appends an event.
func (s *client) write(w *openai.Continued, c *openai.Chunk) {
	s.out = append(w.Event(append(s.out, "data: "...), c), "\n\n"...)
}

// close appends what ends the stream after its finish reason. It returns false when not all of it is known.
func (s *client) close(t *tokens) bool {
	if s.counted && !s.usage {
		if t.blind || s.head == nil || t.promptTokens == 0 {
			return false
		}
		w := s.words(t)
		s.out = append(w.Usage(append(s.out, "data: "...), &s.stamp), "\n\n"...)
	}
	s.done = true
	s.out = append(s.out, "data: [DONE]\n\n"...)
	return true
}
