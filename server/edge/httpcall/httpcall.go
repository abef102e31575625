// Package httpcall describes a call that an HTTP request makes. The REST surface attaches a Call to
// the context of the handler, which then sees the client's path, query and headers as they came and
// answers with an exact status and headers of its own. A handler without one serves a gRPC client.
package httpcall

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/metadata"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
	"github.com/kvpilot/kvpilot/server/route/router/direct"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// Call is one HTTP request on its way to a handler.
type Call struct {
	// Call is the request as the router takes it: the surface sets the client's method, path, query, headers, address, id
	// and upload, the handler everything else.
	intake.Call
	// Caller is the sender of the request; nil when its credentials were not checked.
	Caller *caller.Caller
	// Answer takes the answer of a raw route.
	Answer intake.Sink
	// Upgrade makes a WebSocket of the client's connection; nil when the client does not ask for one.
	Upgrade direct.Upgrade
	// Account is the account that the request is charged to; nil when nothing is counted.
	Account *ledger.Account
	// Mistakes are the messages of a stream that could not be read and came empty; nil for other calls.
	Mistakes *Mistakes
	// Live ends a stream of messages that is still being read; nil for other calls.
	Live Live
}

// Live is a call that receives messages while it is answered.
type Live interface {
	// End ends the call with an error for its caller.
	End(*apierror.Error)
}

type callKey struct{}

// With attaches c to the context of a handler.
func With(ctx context.Context, c *Call) context.Context { return context.WithValue(ctx, callKey{}, c) }

// From returns the Call of a handler's context, nil when the call came over gRPC.
func From(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// Host is an address without its port; empty when it has none.
func Host(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	return host
}

// keyOpen marks the header of a stream that is open but may have nothing to send for long.
const keyOpen = "x-kvpilot-stream"

// StreamOpen is the header that a handler sends once its stream has passed every check. The REST surface then answers its
// client at once instead of with the first message.
func StreamOpen() metadata.MD { return metadata.MD{keyOpen: {"open"}} }

// IsOpen reports whether a header comes from StreamOpen.
func IsOpen(md metadata.MD) bool { return len(md[keyOpen]) > 0 }

// Mistakes are messages of a stream that could not be read, by their number from 1. A nil Mistakes is empty.
type Mistakes struct {
	mu   sync.Mutex
	list map[int]error // guarded by mu
}

// Note keeps the error of message n until it is taken.
func (m *Mistakes) Note(n int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.list == nil {
		m.list = map[int]error{}
	}
	m.list[n] = err
}

// Take returns and forgets the error of message n, nil without one.
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
