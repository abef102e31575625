package upstream

import (
	"io"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Target is where a request goes.
type Target struct {
	Replica *replica.Replica
	// Rank is the data-parallel rank; it matters only when the replica has several.
	Rank int
}

// Request is what to send. It may be sent again as it is, unless it has a Stream: then Again says.
type Request struct {
	Method string
	// Path begins with a slash; Query has no question mark.
	Path, Query string
	// Header holds the client's headers. It is not changed; headers that must not or need not
	// reach a replica are always left out.
	Header http.Header
	// ContentType is sent instead of Header's, when it is set.
	ContentType string
	// RequestID becomes X-Request-Id, when it is set.
	RequestID string
	// Steers sends the client's own X-data-parallel-rank to a replica whose ranks are not known.
	Steers bool
	// Client is the client's address, for X-Forwarded-For; empty says nothing.
	Client string
	// Body is sent without being copied and must not change until the Response is closed.
	Body []byte
	// Stream is sent after Body. StreamSize is its size, -1 when unknown.
	Stream     io.Reader
	StreamSize int64
	// Once says that bytes read of Stream are lost for another attempt. It goes over a fresh connection: one that was
	// kept may be closed by the replica just then.
	Once bool
	// Again, when it is set, makes Body and Stream the whole body again after part of Stream was read,
	// and is false when that part is gone. Without it a stream is sent once.
	Again func() bool
	// Span, when it is valid, is named to the replica as the sender, instead of the span in ctx.
	Span trace.SpanID
	// Times, when it is set, receives the moments of the exchange.
	Times *Times
}

// Times are the moments of an exchange; zero for an event that did not happen. When a connection that was
// kept turns out to be closed, they are the times of the fresh one.
type Times struct {
	// DialBegan and Dialed are set when a new connection was opened.
	DialBegan, Dialed time.Time
	// Began is when there was a connection to send on, Head when the head of the response had come.
	Began, Head time.Time
}

// again makes the request fit to be sent once more.
func (r *Request) again() bool { return r.Stream == nil || r.Again != nil && r.Again() }

// size is the length of the body, -1 when unknown.
func (r *Request) size() int64 {
	switch {
	case r.Stream == nil:
		return int64(len(r.Body))
	case r.StreamSize < 0:
		return -1
	}
	return int64(len(r.Body)) + r.StreamSize
}

// Response is a replica's response. It belongs to one goroutine; to abort it from another one,
// end the context that Do was called with.
type Response struct {
	Status int
	// Header has the headers that may go to clients, and Retry-After.
	Header http.Header
	// ContentLength is the size of the body, -1 when it is not known beforehand.
	ContentLength int64

	body body
}

// body is the rest of a response, as a transport reads it.
type body interface {
	// next returns the bytes of one read, valid until the next call; io.EOF at the end.
	next() ([]byte, error)
	// close gives the connection back after the end, and closes it before.
	close()
}

// Next returns the next bytes of the body, as one read returned them. They are valid until
// the following call. At the end of the body the error is io.EOF; bytes and an error do not
// come together.
func (r *Response) Next() ([]byte, error) { return r.body.next() }

// Close ends the request: before the end of the body it closes the connection, which makes
// the engine stop. It may be called more than once.
func (r *Response) Close() { r.body.close() }

// Restore sets the body to the result of ReadAll for a Response that is closed since: Next returns it again.
func (r *Response) Restore(body []byte) { r.body = &restored{body} }

// restored is a body in memory.
type restored struct{ left []byte }

func (b *restored) next() ([]byte, error) {
	if len(b.left) == 0 {
		return nil, io.EOF
	}
	piece := b.left
	b.left = nil
	return piece, nil
}

func (*restored) close() {}

// atEnd reports the plain io.EOF, which is the end of a response; a wrapped one is a response that was cut off.
func atEnd(err error) bool { return err == io.EOF }

// ReadAll reads the rest of the body, and at most limit bytes of it. It does not close the response.
func (r *Response) ReadAll(limit int) ([]byte, error) {
	var all []byte
	if r.ContentLength > 0 {
		all = make([]byte, 0, min(r.ContentLength, int64(limit)))
	}
	for {
		b, err := r.Next()
		if atEnd(err) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		if len(all)+len(b) > limit {
			return append(all, b[:limit-len(all)]...), io.ErrShortBuffer
		}
		all = append(all, b...)
	}
}
