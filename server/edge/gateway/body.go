package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
)

// firstPiece is read before memory is taken for more of a body, and pieceGrowth is how much
// larger the next piece may be: a client that announces much must also send something. What is
// copied from piece to piece is small compared to the whole.
const (
	firstPiece  = 128 << 10
	pieceGrowth = 64
)

// body is a request body that was read whole. As a reader it is at its end: the codec takes the
// bytes themselves.
type body struct {
	data        []byte
	contentType string
}

func (*body) Read([]byte) (int, error) { return 0, io.EOF }
func (*body) Close() error             { return nil }

// liveBody is a body of messages that are answered as they come. mistakes are the messages that cannot be read, wrong the one
// after which none can be read: the generated code ends the stream there without the reason.
type liveBody struct {
	io.ReadCloser
	mistakes *httpcall.Mistakes
	wrong    atomic.Pointer[apierror.Error]
	control  *http.ResponseController
}

// End implements httpcall.Live.
func (b *liveBody) End(e *apierror.Error) {
	if b.wrong.CompareAndSwap(nil, e) {
		_ = b.control.SetReadDeadline(time.Unix(1, 0)) // a connection that is gone ends the call too
	}
}

// mistake is what was wrong with a message, nil when nothing was.
func (b *liveBody) mistake() *apierror.Error {
	if b == nil {
		return nil
	}
	return b.wrong.Load()
}

// expectBody starts the clock for a body that is still to come. It runs on while the body is
// rejected and net/http reads the rest of it, and stops when the whole body was read.
func (g *Gateway) expectBody(rq *request, r *http.Request) {
	if hasBody(r) {
		// Test writers have no deadlines; a connection's failure shows when it is read.
		_ = rq.control.SetReadDeadline(time.Now().Add(rq.config.BodyTimeout))
	}
}

func hasBody(r *http.Request) bool {
	return r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0
}

// readBody reads a request's body, within the limit and the time that the configuration sets.
func (g *Gateway) readBody(rq *request, r *http.Request, limit int64) (data []byte, err error) {
	if !hasBody(r) {
		return nil, nil
	}
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	if r.ContentLength > 0 {
		data, err = rq.readExactly(r.Body, r.ContentLength)
	} else {
		data, err = rq.readChunked(http.MaxBytesReader(rq.w, r.Body, limit))
	}
	if err != nil {
		if r.ProtoMajor == 1 {
			rq.w.Header().Set("Connection", "close") // the rest of the body would be read as a request
		}
		return nil, bodyError(err, limit)
	}
	_ = rq.control.SetReadDeadline(time.Time{}) // else it would end the answer
	return data, nil
}

func (rq *request) readExactly(from io.Reader, n int64) ([]byte, error) {
	begin := min(n, firstPiece)
	if err := rq.hold(begin); err != nil {
		return nil, err
	}
	data := make([]byte, begin)
	if _, err := io.ReadFull(from, data); err != nil {
		return nil, err
	}
	if n > firstPiece {
		if err := rq.hold(n - firstPiece); err != nil {
			return nil, err
		}
		whole := make([]byte, n)
		copy(whole, data)
		if _, err := io.ReadFull(from, whole[firstPiece:]); err != nil {
			return nil, err
		}
		data = whole
	}
	return data, nil
}

func (rq *request) readChunked(from io.Reader) ([]byte, error) {
	var buf bytes.Buffer
	for {
		n, err := buf.ReadFrom(io.LimitReader(from, firstPiece))
		if err == nil && n > 0 {
			err = rq.hold(n)
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return buf.Bytes(), nil
		}
	}
}

// hold counts n more bytes of this request's body among those of all requests.
func (rq *request) hold(n int64) error {
	if err := rq.g.budget.Take(n); err != nil {
		return err
	}
	rq.held += n
	return nil
}

func bodyError(err error, limit int64) error {
	if refused, ok := errors.AsType[*apierror.Error](err); ok {
		return refused
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLarge(limit)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return apierror.New(apierror.BodyTimeout, "the request body did not arrive in time", err)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return apierror.New(apierror.Cancelled, "the request body ended early", err)
	}
	return apierror.New(apierror.InvalidBody, "the request body could not be read", err)
}

func tooLarge(limit int64) error {
	return apierror.New(apierror.BodyTooLarge, fmt.Sprintf("the request body is larger than the %d bytes that this router accepts", limit), nil)
}

// checkType rejects bodies in a form that the route cannot read. Compressed bodies are rejected:
// engines do not take them, and a small one may hide a huge one.
func checkType(r *http.Request, opaque bool) error {
	for _, coding := range r.Header["Content-Encoding"] {
		if coding != "" && !strings.EqualFold(coding, "identity") {
			return apierror.New(apierror.UnsupportedMediaType, "compressed request bodies are not accepted", nil)
		}
	}
	if opaque || r.ContentLength == 0 {
		return nil // the engine judges the type of its own bodies
	}
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	switch strings.ToLower(strings.TrimSpace(kind)) {
	case typeJSON, typeLines:
		return nil
	case "", typeForm: // as curl -d sends it; a page could without asking
		if !guard.FromBrowser(r.Header) {
			return nil
		}
	}
	return apierror.New(apierror.UnsupportedMediaType, "the content type must be application/json", nil)
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
