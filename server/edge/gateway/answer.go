package gateway

import (
	"errors"
	"net/http"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
)

// answer is the answer to the client of a request. Its methods hold alive's lock where comments may be written.
type answer struct {
	client
	metrics *metrics
	status  int // as sent; 0 while nothing was
	cut     cut
	tail    [2]byte // the last bytes of a stream of server-sent events
	pushed  bool    // every write goes out at once
	opened  bool    // the first piece was written
	aborted bool    // the connection must not look as if the answer were whole
	failed  *apierror.Error
	alive   *keepAlive // of a stream; nil without one
}

// cut is where an answer can be cut so that an error can follow.
type cut uint8

const (
	cutNowhere cut = iota
	cutEvents      // between server-sent events
	cutLines       // between lines of JSON
)

var errBegun = errors.New("the answer has begun")

// start sends the status and the headers, with the first bytes of the body.
func (a *answer) start(status int) {
	h := a.w.Header()
	switch kind := h.Get("Content-Type"); {
	case isEvents(kind):
		a.cut = cutEvents
	case plainType(kind) == typeLines:
		a.cut = cutLines
	}
	a.pushed = h.Get("Content-Length") == ""
	a.status = status
	if !a.multiplexed {
		a.extend() // for an answer that is written when its handler has ended
	}
	a.w.WriteHeader(status)
}

// whole sends an answer of one piece.
func (a *answer) whole(status int, contentType string, text []byte) {
	h := a.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", itoa(int64(len(text))))
	a.start(status)
	_ = a.write(text) // the client may be gone
}

// write sends bytes of the body; bytes of a stream leave at once. A client that takes nothing for
// the stall timeout loses its connection: a reader that is merely slow holds the engine back.
func (a *answer) write(p []byte) error {
	a.extend()
	if a.cut == cutEvents {
		a.note(p)
		if !a.opened {
			a.opened = true
			return a.apart(p)
		}
	}
	return a.send(p)
}

// note keeps the last two bytes of a stream.
func (a *answer) note(p []byte) {
	switch n := len(p); n {
	case 0:
	case 1:
		a.tail[0], a.tail[1] = a.tail[1], p[0]
	default:
		a.tail[0], a.tail[1] = p[n-2], p[n-1]
	}
}

// endOfEvent ends an event that was cut off in its middle, so that the next one stands for itself.
func (a *answer) endOfEvent() []byte {
	switch last := a.tail[1]; {
	case last == 0, a.tail == [2]byte{'\n', '\n'}:
		return nil
	case last == '\n', last == '\r': // after a line, or after an event with other line ends
		return []byte("\n")
	}
	return []byte("\n\n")
}

// apart is send on a goroutine of its own, for the first piece of a stream: net/http writes the
// header so deep that the stack of the request's goroutine would be doubled, and stay so for as
// long as the stream lasts (5 KB per idle stream).
func (a *answer) apart(p []byte) (err error) {
	var panicked any
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		err = a.send(p)
	}()
	<-done // write deadlines bound it
	if panicked != nil {
		panic(panicked) // where net/http expects it
	}
	return err
}

// send hands p to the connection.
func (a *answer) send(p []byte) error {
	if _, err := a.w.Write(p); err != nil {
		return err
	}
	if a.pushed {
		err := a.control.Flush()
		a.flushed()
		return err
	}
	return nil
}

// extend gives the client time to take the next bytes.
func (a *answer) extend() {
	if a.stall <= 0 && a.alive == nil {
		return
	}
	now := time.Now()
	if a.alive != nil {
		a.alive.last = now
	}
	if a.isShort(now) {
		a.allow(now)
	}
}

// fail sends an error in the dialect of its client. The first one counts. Comments must be kept away.
func (a *answer) fail(e *apierror.Error, dialect apierror.Dialect) {
	if a.failed != nil {
		return
	}
	a.failed = e
	if a.status == 0 {
		contentType, text := e.Body(dialect)
		httpcall.SetErrorHeaders(a.w.Header(), e)
		a.whole(e.HTTPStatus(), contentType, text)
		return
	}
	switch {
	case a.status == http.StatusSwitchingProtocols: // the connection is no longer one for answers
	case a.cut == cutEvents:
		_ = a.write(append(a.endOfEvent(), e.Events(dialect)...)) // the client may be gone
	case a.cut == cutLines:
		_ = a.write(append(e.JSON(dialect), '\n')) // as above
	default:
		a.aborted = true
	}
	a.metrics.brokenStream(e)
}

// outcome is the status for the record: 499 if the client disconnected, also after a part of the answer was sent.
func (a *answer) outcome() int {
	if a.failed != nil && a.failed.Reason == apierror.Cancelled {
		return apierror.StatusClientClosed
	}
	return a.status
}
