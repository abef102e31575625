package gateway

import (
	"io"
	"net/http"
	"time"

	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// upload is a request body that is passed on as it comes. The bytes read of it count among the
// bytes held, until Pass says that they are no longer kept. Its errors are for the client.
type upload struct {
	rq     *request
	from   io.Reader
	closes bool // a body that was not read to its end makes the connection unusable
	passed bool
}

// takeUpload leaves the body to be read by the handler.
func (rq *request) takeUpload(r *http.Request) error {
	if err := checkType(r, true); err != nil {
		return err
	}
	limit := int64(rq.config.MaxBodyBytes)
	if r.ContentLength > limit {
		return tooLarge(limit)
	}
	rq.body.contentType = r.Header.Get("Content-Type")
	if hasBody(r) {
		rq.call.Stream = &upload{rq: rq, from: http.MaxBytesReader(rq.out.w, r.Body, limit), closes: r.ProtoMajor == 1}
		rq.call.StreamSize = r.ContentLength
	}
	return nil
}

var _ intake.Stream = (*upload)(nil)

// Read implements router.Stream.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.from.Read(p)
	if n > 0 && !u.passed {
		if refused := u.rq.holding.account.TakeSoon(u.rq.ctx, ledger.Body, int64(n)); refused != nil {
			n, err = 0, guard.Refused(refused)
		}
	}
	switch {
	case isEnd(err):
		u.rq.holding.rest = nil
		_ = u.rq.out.control.SetReadDeadline(time.Time{}) // else it would end the answer
	case err != nil:
		if u.closes && u.rq.out.status == 0 {
			u.rq.out.w.Header().Set("Connection", "close") // the rest of the body would be read as a request
		}
		err = bodyError(err, int64(u.rq.config.MaxBodyBytes))
	}
	return n, err
}

// Pass implements router.Stream.
func (u *upload) Pass() { u.passed = true }
