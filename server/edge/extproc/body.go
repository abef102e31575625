package extproc

import (
	"context"
	"fmt"
	"strconv"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
)

// body is the client's body as it arrives.
type body struct {
	data []byte
	// whole is set when nothing more of it comes, trailers when trailers have come behind it.
	whole, trailers bool
	charged         int64
	moving          ledger.Hold
}

// done ends the body's arrival.
func (b *body) done() { b.moving.Done() }

// collect reads the body to its end.
func (x *exchange) collect(ctx context.Context) error {
	if announced, err := strconv.ParseInt(x.request.call.Header.Get("Content-Length"), 10, 64); err == nil && announced > x.server.maxBody {
		return x.tooLarge()
	}
	var late <-chan time.Time
	if limit := x.server.params.Times.BodyTimeout(); limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	slow := make(chan struct{})
	x.account.Watch(&x.body.moving, ledger.Body, func() { close(slow) })
	defer x.body.done()
	for {
		m, err := x.next(late, slow)
		if err != nil {
			return err
		}
		switch part := m.GetRequest().(type) {
		case *extproc.ProcessingRequest_RequestBody:
			b := part.RequestBody
			if err := x.add(ctx, b.GetBody()); err != nil {
				return err
			}
			// A buffered body is one message; trailers may follow it.
			if x.body.whole = b.GetEndOfStream() || x.modes.request == modev3.ProcessingMode_BUFFERED; x.body.whole {
				return nil
			}
			if x.modes.request == modev3.ProcessingMode_BUFFERED_PARTIAL && x.request.call.Header.Get("Content-Length") != strconv.Itoa(len(x.body.data)) {
				return apierror.New(apierror.BodyTooLarge, "the gateway sent the beginning of the body only: raise its limit for bodies, or have it send them whole (request_body_mode: FULL_DUPLEX_STREAMED)", nil)
			}
			if isBuffered(x.modes.request) {
				x.body.whole = true
				return nil
			}
		case *extproc.ProcessingRequest_RequestTrailers:
			x.body.whole, x.body.trailers = true, true
			return nil
		case *extproc.ProcessingRequest_ResponseHeaders:
			if err := x.beginAnswer(ctx, m, part.ResponseHeaders); err != nil {
				return err
			}
			return errAnswered
		}
	}
}

// add appends a piece. The first one is kept as it is: it mostly is the whole.
func (x *exchange) add(ctx context.Context, piece []byte) error {
	b := &x.body
	size := len(b.data) + len(piece)
	if int64(size) > x.server.maxBody {
		return x.tooLarge()
	}
	b.moving.Moved(len(piece))
	if b.data == nil {
		b.data = piece[:len(piece):len(piece)]
		return x.charge(ctx, int64(len(piece)))
	}
	if size > cap(b.data) {
		room := max(size, 2*cap(b.data))
		if announced, err := strconv.Atoi(x.request.call.Header.Get("Content-Length")); err == nil && announced >= size {
			room = min(max(announced, size), max(size, 8*cap(b.data)))
		}
		if err := x.charge(ctx, int64(room)); err != nil {
			return err
		}
		b.data = append(make([]byte, 0, room), b.data...)
	}
	b.data = append(b.data, piece...)
	return nil
}

// charge has the body count with n bytes.
func (x *exchange) charge(ctx context.Context, n int64) error {
	if err := x.account.TakeSoon(ctx, ledger.Body, n); err != nil {
		return guard.Refused(err)
	}
	x.account.Give(ledger.Body, x.body.charged)
	x.body.charged = n
	return nil
}

func (x *exchange) tooLarge() error {
	return apierror.New(apierror.BodyTooLarge, fmt.Sprintf("the request body is larger than the %d bytes that this router accepts", x.server.maxBody), nil)
}
