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

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
)

// body is a request body that was read whole, or one that is read while it is answered. As a reader it is at its end: the codec takes the
// bytes themselves.
type body struct {
	data        []byte
	contentType string
	received    bool      // it was handed to the handler of a raw route
	live        *liveBody // nil for a body that was read whole
}

// The content types of messages.
const (
	typeJSON  = "application/json"
	typeLines = "application/x-ndjson"
	typeForm  = "application/x-www-form-urlencoded"
)

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

// mistake is the fault of a message, nil for none.
func (b *liveBody) mistake() *apierror.Error {
	if b == nil {
		return nil
	}
	return b.wrong.Load()
}

// isEnd reports the end of a body. A wrapped io.EOF belongs to a body that was cut off.
func isEnd(err error) bool { return err == io.EOF }

func hasBody(r *http.Request) bool {
	return r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0
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

const (
	// smallBody bounds the messages of RPCs that carry no prompt.
	smallBody = 4 << 20
	// mostValues bounds the values of a message in JSON, which decoded take many times their bytes: as
	// many as a prompt may have token ids, and a few more.
	mostValues = 4<<20 + 64<<10
)

// small reports whether an RPC's message carries no prompt.
func small(m protoreflect.MessageDescriptor) bool {
	for _, name := range []protoreflect.Name{"data", "body", "text"} {
		if m.Fields().ByName(name) != nil {
			return false
		}
	}
	return true
}

// checkValues rejects JSON of so many values that the message would take far more memory than the text.
func checkValues(data []byte) error {
	if len(data) > mostValues && bytes.Count(data, []byte{','}) > mostValues {
		return fmt.Errorf("the request body has more than %d values", mostValues)
	}
	return nil
}

// perMessage bounds each message of a stream of them.
type perMessage struct {
	io.Reader
	left int
}

// Read implements io.Reader.
func (r *perMessage) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, tooLarge(smallBody)
	}
	n, err := r.Reader.Read(p[:min(len(p), r.left)])
	r.left -= n
	return n, err
}
