package sse

import (
	"bytes"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
)

// Scanner watches the bytes of one answer as they pass. It decodes no JSON but the usage, at
// the end. Feed it every piece in order; pieces may be cut anywhere. The zero value is ready
// for an answer that is not streamed; Reset makes it ready for another one. It allocates
// nothing, and it belongs to one goroutine.
type Scanner struct {
	stream bool
	// generates is set for answers that have finish reasons.
	generates bool

	events  int
	content int
	fed     int // bytes
	failed  bool
	done    bool

	unfinished line
	// the event that is being read
	named   eventName
	payload payload

	find finder
}

// line is the line that is being read: its first bytes, its length, and whether a CR came last.
type line struct {
	head    [headSize]byte
	headLen int
	length  int
	afterCR bool
}

// headSize is how much of a line decides what it is.
const headSize = 64

// keep adds to the line.
func (l *line) keep(b []byte) {
	l.length += len(b)
	l.headLen += copy(l.head[l.headLen:], b)
}

// payload is the kind of an event's data lines.
type payload uint8

const (
	payloadNone payload = iota
	payloadPlain
	payloadDone  // the one line [DONE]
	payloadError // an object with an error
)

// eventName is the kind of an event by its name.
type eventName uint8

const (
	nameNone eventName = iota
	nameOther
	nameContent
	nameError
	nameEnd
)

// Reset makes the scanner ready for an answer in the format of api.
func (s *Scanner) Reset(api prompt.API, stream bool) {
	*s = Scanner{stream: stream, generates: api != prompt.APIOther}
	s.find.anthropic = api == prompt.APIMessages
}

// Events is the number of complete events with data, [DONE] not counted.
func (s *Scanner) Events() int { return s.events }

// ContentEvents is the number of events that carry generated content: about one per token or
// group of tokens.
func (s *Scanner) ContentEvents() int { return s.content }

// Bytes is the number of bytes that Feed has seen.
func (s *Scanner) Bytes() int { return s.fed }

// Failed reports whether the stream reported an error. A stream that failed may still end
// with [DONE].
func (s *Scanner) Failed() bool { return s.failed }

// Done reports whether the stream has said that it is complete.
func (s *Scanner) Done() bool { return s.done }

// FinishReason is the last finish_reason or stop_reason that was seen ("stop", "length",
// "tool_calls"), empty when there was none.
func (s *Scanner) FinishReason() string { return s.find.finish.text() }

// Finished is how many finish_reasons were seen: a stream of chat or completions has one for each choice.
func (s *Scanner) Finished() int { return s.find.finishes }

// ResponseID is the first id of the answer ("resp_...", "chatcmpl-..."), empty when there was none.
func (s *Scanner) ResponseID() string { return s.find.id.text() }

// Usage is the last usage that was seen.
func (s *Scanner) Usage() (Usage, bool) { return s.find.usage() }

// Feed looks at the next piece. It is true when this piece brought the first content.
func (s *Scanner) Feed(b []byte) bool {
	if len(b) == 0 {
		return false
	}
	s.fed += len(b)
	s.find.feed(b)
	if !s.stream {
		first := s.content == 0
		s.content = 1
		return first
	}
	before := s.content
	if bytes.IndexByte(b, '\r') >= 0 || s.unfinished.afterCR {
		s.feedMixed(b)
	} else {
		s.feedLines(b)
	}
	return before == 0 && s.content > 0
}

// feedLines takes a piece in which only LF ends lines.
func (s *Scanner) feedLines(b []byte) {
	for len(b) > 0 {
		n := bytes.IndexByte(b, '\n')
		if n < 0 {
			s.unfinished.keep(b)
			return
		}
		if s.unfinished.length == 0 {
			s.line(b[:n])
		} else {
			s.unfinished.keep(b[:n])
			s.endLine()
		}
		b = b[n+1:]
	}
}

// feedMixed takes a piece in which CR, LF or CRLF may end a line.
func (s *Scanner) feedMixed(b []byte) {
	for len(b) > 0 {
		if s.unfinished.afterCR {
			s.unfinished.afterCR = false
			if b[0] == '\n' {
				b = b[1:]
				continue
			}
		}
		n := bytes.IndexAny(b, "\r\n")
		if n < 0 {
			s.unfinished.keep(b)
			return
		}
		s.unfinished.keep(b[:n])
		s.endLine()
		s.unfinished.afterCR = b[n] == '\r'
		b = b[n+1:]
	}
}

// endLine takes the line that was put together from several pieces.
func (s *Scanner) endLine() {
	if s.unfinished.length == 0 {
		s.line(nil)
		return
	}
	s.line(s.unfinished.head[:s.unfinished.headLen])
	s.unfinished.headLen, s.unfinished.length = 0, 0
}

// line takes one line, of which only the first headSize bytes are looked at.
func (s *Scanner) line(line []byte) {
	switch {
	case len(line) == 0:
		s.endEvent()
	case line[0] == 'd' && bytes.HasPrefix(line, []byte("data")):
		if value, ok := fieldValue(line[4:]); ok {
			s.dataLine(value)
		}
	case line[0] == 'e' && bytes.HasPrefix(line, []byte("event")):
		if value, ok := fieldValue(line[5:]); ok {
			s.named = classifyName(value)
		}
	}
}

// fieldValue is the part behind a field's name: nothing, or a colon, a space that may be missing, and the value.
func fieldValue(rest []byte) ([]byte, bool) {
	if len(rest) == 0 {
		return nil, true
	}
	if rest[0] != ':' {
		return nil, false
	}
	rest = rest[1:]
	if len(rest) > 0 && rest[0] == ' ' {
		rest = rest[1:]
	}
	return rest, true
}

func (s *Scanner) dataLine(value []byte) {
	switch {
	case s.payload == payloadError: // further lines change nothing
	case s.payload != payloadNone:
		s.payload = payloadPlain
	case len(value) > 2 && value[0] == '{' && value[1] == '"' && value[2] != 'e':
		s.payload = payloadPlain // nearly all that comes: an object that does not begin with "error"
	case bytes.Equal(bytes.TrimSpace(value[:min(len(value), headSize)]), []byte("[DONE]")):
		s.payload = payloadDone
	case isErrorObject(value):
		s.payload = payloadError
	default:
		s.payload = payloadPlain
	}
}

// isErrorObject reports whether an object begins with an error that is not null.
func isErrorObject(value []byte) bool {
	rest := bytes.TrimLeft(value, " \t")
	if len(rest) == 0 || rest[0] != '{' {
		return false
	}
	rest = bytes.TrimLeft(rest[1:], " \t")
	if !bytes.HasPrefix(rest, []byte(`"error"`)) {
		return false
	}
	rest = bytes.TrimLeft(rest[len(`"error"`):], " \t")
	if len(rest) == 0 || rest[0] != ':' {
		return false
	}
	return !bytes.HasPrefix(bytes.TrimLeft(rest[1:], " \t"), []byte("null"))
}

// endEvent takes the event that a blank line ends.
func (s *Scanner) endEvent() {
	switch s.payload {
	case payloadNone:
	case payloadDone:
		s.done = true
	case payloadPlain, payloadError:
		s.events++
		s.failed = s.failed || s.payload == payloadError || s.named == nameError
		s.done = s.done || s.named == nameEnd
		if s.isContent() {
			s.content++
		}
	}
	s.named, s.payload = nameNone, payloadNone
}

// isContent reports whether the event carries generated output. Chat and completion
// streams have unnamed events only, the first of which comes with the first token.
func (s *Scanner) isContent() bool {
	if s.payload == payloadError {
		return false
	}
	return s.named == nameContent || s.named == nameNone
}

// classifyName reads an event's name as the Responses API and Anthropic's format use them.
func classifyName(name []byte) eventName {
	switch {
	case len(name) == 0:
		return nameNone
	case string(name) == "error", string(name) == "response.failed":
		return nameError
	case string(name) == "message_stop", string(name) == "response.completed", string(name) == "response.incomplete":
		return nameEnd
	case string(name) == "content_block_delta", string(name) == "content_block_start", string(name) == "response.output_item.added",
		bytes.HasPrefix(name, []byte("response.")) && bytes.HasSuffix(name, []byte(".delta")):
		return nameContent
	}
	return nameOther
}
