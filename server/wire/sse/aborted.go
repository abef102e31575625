package sse

import "bytes"

// finishAbort is the finish reason of vLLM for an answer that the engine stopped because it was paused, put to sleep or asked to
// abort the request. The answer is not whole.
const finishAbort = "abort"

// Aborted reports whether the engine aborted the answer. Chat and completions have the finish reason "abort" for at least one
// choice; a message of Anthropic's format ends without a stop reason. over is set when the whole answer was fed; a stream says by
// itself that it is over.
func (s *Scanner) Aborted(over bool) bool {
	if !s.find.anthropic {
		return s.generates && s.find.aborted
	}
	if s.stream {
		over = s.done
	}
	return over && s.find.unfinished && s.find.finishes == 0
}

// Between reports whether the scanner is between two events.
func (s *Scanner) Between() bool {
	return s.unfinished.length == 0 && s.payload == payloadNone && s.named == nameNone
}

// BeforeAbort is the part of piece that a client gets of a stream that was aborted within the piece: up to the event that
// claims to end the answer. An event that began in an earlier piece is given whole. between is Between before piece was fed.
func (s *Scanner) BeforeAbort(piece []byte, between bool) []byte {
	at := 0
	for _, mark := range s.endMarks() {
		if i := bytes.LastIndex(piece, []byte(mark)); i >= 0 {
			at = i
			break
		}
	}
	if begin := lastEnd(piece[:at]); begin > 0 || between {
		return piece[:begin]
	}
	if n := bytes.Index(piece[at:], []byte("\n\n")); n >= 0 {
		return piece[:at+n+len("\n\n")]
	}
	return piece
}

// endMarks are parts of the events that claim to end an answer.
func (s *Scanner) endMarks() []string {
	if s.find.anthropic {
		return []string{"event: message_stop"}
	}
	return []string{`"` + finishAbort + `"`, "event: response.completed"}
}
