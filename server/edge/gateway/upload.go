package gateway

import (
	"io"
	"net/http"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

// upload is a request body that is passed on as it comes. What is read of it counts among the
// bytes held, until Pass says that it is no longer kept. Its errors are for the client.
type upload struct {
	rq     *request
	from   io.Reader
	closes bool // a body that was not read to its end leaves the connection useless
	passed bool
}

// takeUpload leaves the body to be read by the service.
func (g *Gateway) takeUpload(rq *request, r, inner *http.Request) bool {
	if err := acceptable(r, true); err != nil {
		rq.fail(apierror.From(err))
		return false
	}
	limit := g.conf.Load().MaxBodyBytes
	if r.ContentLength > limit {
		rq.fail(apierror.From(tooLarge(limit)))
		return false
	}
	rq.body = body{contentType: r.Header.Get("Content-Type")}
	inner.Body = &rq.body
	if hasBody(r) {
		rq.exchange.Body = &upload{rq: rq, from: http.MaxBytesReader(rq.w, r.Body, limit), closes: r.ProtoMajor == 1}
		rq.exchange.BodySize = r.ContentLength
	}
	return true
}

// Read implements inproc.Body.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.from.Read(p)
	if n > 0 && !u.passed {
		if refused := u.rq.hold(int64(n)); refused != nil {
			n, err = 0, refused
		}
	}
	switch {
	case err == io.EOF: //nolint:errorlint // the plain io.EOF is the end; a wrapped one is a body that was cut off
		_ = u.rq.control.SetReadDeadline(time.Time{}) // else it would end the answer
	case err != nil:
		if u.closes && u.rq.status == 0 {
			u.rq.w.Header().Set("Connection", "close") // what is left of the body cannot be told from a request
		}
		err = bodyError(err, u.rq.g.conf.Load().MaxBodyBytes)
	}
	return n, err
}

// Pass implements inproc.Body.
func (u *upload) Pass() { u.passed = true }
