package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
)

// request is one HTTP request on its way: the call that it makes, the route that it takes, how much of its body has come, and the answer.
// The handlers of raw routes see it as a raw, the generated handlers of typed routes in a typed. One goroutine uses it at a time.
type request struct {
	config  *Config         // as the request began with
	ctx     context.Context // the handler's: gRPC's interfaces ask for it by method
	call    httpcall.Call
	routed  routed
	body    body
	holding holding
	out     answer
	tunnel  *tunnel // the connection after an upgrade; nil while it is HTTP
}

// fail answers with an error. The first one counts.
func (rq *request) fail(e *apierror.Error) {
	rq.out.alive.lock()
	defer rq.out.alive.unlock()
	rq.failLocked(e)
}

// failLocked is fail for callers that keep comments away.
func (rq *request) failLocked(e *apierror.Error) {
	if e.Reason == apierror.Cancelled && rq.ctx.Err() != nil {
		e = clientLeft(e)
	}
	if rq.out.status == 0 && rq.holding.rest != nil {
		_ = rq.out.control.EnableFullDuplex() // the rest of the body is read after the answer
	}
	rq.out.fail(e, rq.dialect())
}

// dialect is the dialect of the request's path; of a proxy's question for a replica, of its client's path.
func (rq *request) dialect() apierror.Dialect {
	if below(strings.Replace(rq.call.Path, ":", "/", 1), "/v1/route") {
		return httpcall.DialectOf(rq.call.Header.Get("X-Kvpilot-Path"))
	}
	return httpcall.DialectOf(rq.call.Path)
}

// expectBody starts the clock for a body that is still to come. It runs on while the body is
// rejected and net/http reads the rest of it, and stops when the whole body was read.
func (rq *request) expectBody(r *http.Request) {
	if hasBody(r) {
		// Test writers have no deadlines; a connection's failure shows when it is read.
		_ = rq.out.control.SetReadDeadline(time.Now().Add(rq.config.BodyTimeout))
	}
}

// takeLive leaves the body to be read while it is answered.
func (rq *request) takeLive(r *http.Request) {
	control := rq.out.control
	_ = control.SetReadDeadline(time.Time{}) // it lasts as long as the answer
	_ = control.EnableFullDuplex()           // HTTP/2 needs no asking
	rq.call.Mistakes = &httpcall.Mistakes{}
	rq.body.live = &liveBody{ReadCloser: r.Body, mistakes: rq.call.Mistakes, control: control}
	rq.call.Live = rq.body.live
}

// readBody reads a request's body, within the limit and the time that the configuration sets.
func (rq *request) readBody(r *http.Request, limit int64) (data []byte, err error) {
	if !hasBody(r) {
		return nil, nil
	}
	if r.ContentLength > limit {
		rq.closes(r)
		return nil, tooLarge(limit)
	}
	from := r.Body
	if r.ContentLength < 0 {
		from = http.MaxBytesReader(rq.out.w, r.Body, limit)
	}
	control := rq.out.control
	data, err = rq.holding.read(r.Context(), from, r.ContentLength, func() { _ = control.SetReadDeadline(time.Now()) })
	if err != nil {
		rq.closes(r)
		return nil, bodyError(err, limit)
	}
	rq.holding.rest = nil
	_ = control.SetReadDeadline(time.Time{}) // else it would end the answer
	return data, nil
}

// closes ends the connection with the answer: the rest of the body would be read as a request.
func (rq *request) closes(r *http.Request) {
	if r.ProtoMajor == 1 {
		rq.out.w.Header().Set("Connection", "close")
	}
}

// linger reads the rest of a refused body and drops it.
func (rq *request) linger() {
	rest := rq.holding.rest
	if rest == nil || rq.out.failed == nil || rq.out.aborted || rq.tunnel != nil {
		return
	}
	_ = rq.out.control.Flush() // the client may be gone
	_ = rq.out.control.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.Copy(io.Discard, io.LimitReader(rest, int64(rq.config.MaxBodyBytes))) // a body that cannot be read needs no answer
}

var errSlowReader = errors.New("the client reads the answer too slowly, and its memory was needed")

// writeWhole writes an answer that is in memory, charged while it waits for the client.
func (rq *request) writeWhole(p []byte) error {
	h, out := &rq.holding, &rq.out
	h.account.Watch(&h.moving, ledger.Answer, func() { _ = out.control.SetWriteDeadline(time.Now()) })
	defer h.moving.Done()
	for len(p) > 0 {
		out.extend()
		if h.moving.Evicted() {
			out.aborted = true
			return errSlowReader
		}
		n, err := out.w.Write(p[:min(len(p), answerPiece)])
		h.moving.Moved(n)
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// holdAnswer charges a whole answer before its first byte is written.
func (rq *request) holdAnswer(n int) *apierror.Error {
	if n <= smallAnswer {
		return nil
	}
	if err := rq.holding.account.TakeSoon(rq.ctx, ledger.Answer, int64(n)); err != nil {
		return apierror.From(guard.Refused(err))
	}
	return nil
}
