package gateway

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
)

const (
	// requestCost is the fixed cost of a request under way: its goroutine and its records.
	requestCost = 16 << 10
	// smallAnswer is the size up to which an answer is part of that.
	smallAnswer = 16 << 10
	// answerPiece is how much of a large answer is written at once.
	answerPiece = 64 << 10
	// firstPiece is the room for the beginning of a body. A full one grows by a factor: bodyGrowth where the client has announced
	// the size, 2 where it has not.
	firstPiece = 8 << 10
	bodyGrowth = 8
	// lingerTime bounds the time in which the rest of a refused body is read and dropped, so that the client sees the answer: a
	// connection that is closed with unread bytes is reset, and the answer may be lost with it.
	lingerTime = 5 * time.Second
)

// holding is the memory of a request, as the ledger counts it.
type holding struct {
	account ledger.Account
	// moving is the body while it arrives, then the answer while it leaves.
	moving ledger.Hold
	// rest is a body of HTTP/1 that was not read to its end; nil when there is none.
	rest io.Reader
}

// open begins the account of a sender, and charges the fixed cost of a request.
func (h *holding) open(ctx context.Context, book *ledger.Ledger, sender ledger.Sender) error {
	book.Open(&h.account, sender)
	if err := h.account.TakeSoon(ctx, ledger.Stream, requestCost); err != nil {
		return guard.Refused(err)
	}
	return guard.Refused(ledger.ConnFrom(ctx).ProveFor(sender))
}

// expects notes a body that must be read, or dropped, before the connection is closed.
func (h *holding) expects(r *http.Request) {
	if r.ProtoMajor == 1 && hasBody(r) && r.Header.Get("Expect") == "" {
		h.rest = r.Body
	}
}

// close releases all.
func (h *holding) close() {
	h.moving.Done()
	h.account.Close()
}

// read reads a body of n bytes, or of an unknown number when n is negative, into memory that is charged as it grows.
func (h *holding) read(ctx context.Context, from io.Reader, n int64, stop func()) (data []byte, err error) {
	h.account.Watch(&h.moving, ledger.Body, stop)
	defer func() {
		h.moving.Done()
		if err != nil {
			h.account.Limit(ledger.Body, 0) // it is dropped; the request may last until the client has seen why
		}
	}()
	for n < 0 || int64(len(data)) < n {
		if len(data) == cap(data) {
			if data, err = h.grow(ctx, data, n); err != nil {
				return nil, err
			}
		}
		var got int
		got, err = from.Read(data[len(data):cap(data)])
		data = data[:len(data)+got]
		h.moving.Moved(got)
		switch {
		case err == nil:
		case int64(len(data)) == n:
			err = nil
		case isEnd(err) && n < 0:
			return data, nil
		case isEnd(err):
			return nil, io.ErrUnexpectedEOF
		case h.moving.Evicted():
			return nil, apierror.New(apierror.BodyTimeout, "the request body arrived too slowly, and its memory was needed", err)
		default:
			return nil, err
		}
	}
	return data, nil
}

// grow makes more room for a body.
func (h *holding) grow(ctx context.Context, data []byte, n int64) ([]byte, error) {
	old := int64(cap(data))
	next := max(firstPiece, 2*old)
	if n >= 0 {
		next = min(max(firstPiece, bodyGrowth*old), n)
	}
	if err := h.account.TakeSoon(ctx, ledger.Body, next); err != nil {
		return nil, guard.Refused(err)
	}
	more := make([]byte, len(data), next)
	copy(more, data)
	h.account.Give(ledger.Body, old)
	return more, nil
}
