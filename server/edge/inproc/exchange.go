package inproc

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/caller"
)

// Exchange is the HTTP request that a call was made from. It rides beside the call's messages, so
// that the handler sees the client's path, query and headers as they came, and can answer with an
// exact status and headers of its own.
type Exchange struct {
	// Method, Path (still escaped) and RawQuery are the client's own.
	Method   string
	Path     string
	RawQuery string
	// Header holds the client's headers. It is read, never changed.
	Header http.Header
	// RequestID is the client's X-Request-Id or one that was made for it.
	RequestID string
	// RemoteAddr is the client's address and port.
	RemoteAddr string
	// Caller is the sender of the request; nil when its credentials were not checked.
	Caller *caller.Caller
	// Body is the request body where the service reads it itself, and BodySize its size, -1 when
	// unknown; nil where the body is in the message.
	Body     Body
	BodySize int64
	// Upgrade is the client's wish to have a WebSocket of its connection; nil when it has none.
	Upgrade Upgrade
	// Received is when the request's header had been read.
	Received time.Time
	// Answer takes what goes back.
	Answer Answer
	// Mistakes says of a stream's messages which could not be read and came empty; nil for other calls.
	Mistakes *Mistakes
}

// Mistakes are messages of a stream that could not be read, by their number in it from 1. A nil
// Mistakes has none.
type Mistakes struct {
	mu   sync.Mutex
	list map[int]error // guarded by mu
}

// Note keeps what was wrong with message n until it is taken.
func (m *Mistakes) Note(n int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.list == nil {
		m.list = map[int]error{}
	}
	m.list[n] = err
}

// Take returns what was wrong with message n, nil when nothing was.
func (m *Mistakes) Take(n int) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.list[n]
	delete(m.list, n)
	return err
}

// Body is a request body that is still coming. It is used by one goroutine.
type Body interface {
	io.Reader
	// Pass says that what is read from now on is passed on and not kept.
	Pass()
}

// Upgrade is a client that waits for its connection to become a WebSocket.
type Upgrade interface {
	// Switch tells the client so, with these headers beside those of the switch itself, and gives the connection, which is
	// to be closed. It is called once at most. An error means that the client disconnected, or is not to have it.
	Switch(header http.Header) (io.ReadWriteCloser, error)
}

// Answer takes a streamed answer. It is used by one goroutine at a time.
type Answer interface {
	// Begin sets the status and the headers, once, before the first message. The header belongs to
	// the Answer from then on.
	Begin(status int, header http.Header) error
	// Message delivers one message of the stream. It does not keep msg: the handler may use it, and
	// the bytes in it, again as soon as Message returns. An error means that the client disconnected.
	Message(msg any) error
}

type exchangeKey struct{}

// WithExchange attaches e to calls that are made with the returned context.
func WithExchange(ctx context.Context, e *Exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, e)
}

// FromContext returns the Exchange of a handler's call, or nil when the call came another way.
func FromContext(ctx context.Context) *Exchange {
	e, _ := ctx.Value(exchangeKey{}).(*Exchange)
	return e
}
