package enginesim

import (
	"net/http"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kvpilot/kvpilot/server/kit/sleep"
)

// stream writes server-sent events and dies as the faults ask for.
type stream struct {
	l      *life
	c      *call
	flush  func() error
	buf    []byte
	chunks int
	ended  bool // an error object was sent; nothing follows it
}

func newStream(l *life, c *call) *stream {
	return &stream{l: l, c: c, flush: http.NewResponseController(c.w).Flush}
}

// head sends status and headers; vLLM does so when the first chunk is there.
func (s *stream) head() {
	s.c.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	s.c.w.WriteHeader(http.StatusOK)
}

// begin starts an event and returns the buffer to append its JSON to.
func (s *stream) begin(event string) text {
	b := text(s.buf)
	if event != "" {
		b = b.raw("event: " + event + "\n")
	}
	return b.raw("data: ")
}

// end takes the event back; it goes out with the next send.
func (s *stream) end(b []byte) {
	if s.ended {
		return
	}
	s.buf = append(b, "\n\n"...)
	s.chunks++
	f := s.c.faults
	switch {
	case f.DieAfter > 0 && s.chunks >= f.DieAfter:
		s.send()
		panic(http.ErrAbortHandler)
	case f.StallAfter > 0 && s.chunks >= f.StallAfter:
		s.send()
		<-s.c.r.Context().Done()
		panic(http.ErrAbortHandler)
	case f.ErrorAfter > 0 && s.chunks >= f.ErrorAfter:
		s.fail("Simulated failure in mid-stream")
		s.ended = true
	}
}

// fail ends the stream as vLLM does when the engine fails after the first byte.
func (s *stream) fail(message string) {
	s.c.faults.ErrorAfter = 0 // the error object is the last event
	body := s.l.errorObject(apiError{Status: 500, Message: message, Type: "InternalServerError"}, s.c.faults.StringCodes)
	s.value("", map[string]errorBody{"error": body})
	s.done()
}

// value sends v as an event.
func (s *stream) value(event string, v any) {
	raw, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		panic(err) // our own types always marshal
	}
	s.end(append(s.begin(event), raw...))
}

// done sends the end mark of chat and completions.
func (s *stream) done() {
	if s.ended {
		return
	}
	if !s.c.faults.NoDone {
		s.buf = append(s.buf, "data: [DONE]\n\n"...)
	}
	s.send()
	if d := time.Duration(s.c.faults.Linger); d > 0 {
		sleep.For(s.c.r.Context(), d)
	}
}

// send writes the pending bytes in one piece.
func (s *stream) send() {
	if len(s.buf) == 0 {
		return
	}
	_, _ = s.c.w.Write(s.buf) // the request's context ends when the client leaves
	_ = s.flush()
	s.buf = s.buf[:0]
}
