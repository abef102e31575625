package upstream

import (
	"bytes"
	"io"
	"net/http"

	"github.com/kvpilot/kvpilot/server/wire/http1"
)

// maxInterim bounds the interim (1xx) responses before the final one.
const maxInterim = 8

// readHead reads up to the end of the head, and settles how the body is framed.
func (a *responseBody) readHead(method string) *exchangeError {
	a.buf = getBuffer(smallBuffer)
	for range maxInterim {
		head, err := a.takeHead()
		if err != nil {
			return err
		}
		parsed, bad := http1.ParseHead(head, withheldFromClient)
		if bad != nil {
			return &exchangeError{phase: phaseHead, cause: bad}
		}
		if parsed.Status >= 200 {
			return a.settle(method, &parsed)
		}
		if parsed.Status == http.StatusSwitchingProtocols {
			break
		}
	}
	return &exchangeError{phase: phaseHead, cause: http1.Malformed("unexpected interim answer")}
}

// takeHead reads a head, and returns it with its last line break but without the empty line.
// It is valid until the next read.
func (a *responseBody) takeHead() ([]byte, *exchangeError) {
	searched := a.r
	for {
		if i := bytes.Index(a.buf.b[searched:a.w], []byte("\r\n\r\n")); i >= 0 {
			head := a.buf.b[a.r : searched+i+2]
			a.r = searched + i + 4
			return head, nil
		}
		searched = max(a.r, a.w-3)
		if a.w == len(a.buf.b) {
			if a.w-a.r >= int(a.cfg.MaxHeaderBytes) {
				return nil, &exchangeError{phase: phaseHead, cause: http1.Malformed("head too large")}
			}
			searched -= a.r
			a.grow()
		}
		n, err := a.conn.stream.Read(a.buf.b[a.w:])
		a.w += n
		if n == 0 && err != nil {
			unanswered := a.w == a.r && !isTimeout(err)
			if atEnd(err) {
				err = io.ErrUnexpectedEOF
			}
			return nil, &exchangeError{phase: phaseHead, cause: err, unanswered: unanswered}
		}
	}
}

// grow makes room for more of a head that fills the buffer.
func (a *responseBody) grow() {
	bigger := getBuffer(largeBuffer)
	if a.w-a.r > len(bigger.b)/2 { // beyond pooled sizes
		putBuffer(bigger)
		bigger = &buffer{make([]byte, 2*(a.w-a.r))}
	}
	a.w = copy(bigger.b, a.buf.b[a.r:a.w])
	a.r = 0
	putBuffer(a.buf)
	a.buf = bigger
}

// settle applies the head.
func (a *responseBody) settle(method string, h *http1.Head) *exchangeError {
	a.frame = http1.BodyOf(method, h)
	a.resp = Response{Status: h.Status, Header: h.Header, ContentLength: a.frame.Size(), body: a}
	a.broken = h.Close || a.frame.UntilClose()
	a.conn.limit(a.cfg.StallTimeout)
	if a.frame.Complete() {
		a.finish(a.r < a.w)
	}
	return nil
}
