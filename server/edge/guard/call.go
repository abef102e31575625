package guard

import (
	"context"
	"errors"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
)

// Call is one call of a Guard, and the context that it runs in.
type Call struct {
	context.Context //nolint:containedctx // a transport stream carries its context by definition
	// Caller is the sender of the call.
	Caller *caller.Caller

	guard  *Guard
	cancel context.CancelFunc
	began  int64 // the guard's tick
	// receiving says that the caller has not sent its message whole.
	receiving atomic.Bool
	// sending is the tick at which a message to the caller began to be written, 0 while none is.
	sending  atomic.Int64
	rejected atomic.Pointer[apierror.Error]
	// answer sends the call's status; nil until its handler runs.
	answer  atomic.Pointer[statusWriter]
	account ledger.Account
	in      incoming
	conn    *ledger.Conn // nil where connections are not counted
	// before is the number of bytes that had come over the connection when the call began, or when its last message was passed.
	before atomic.Int64
	// nameless: the method needs no credentials.
	nameless bool
	// live calls receive messages until they end.
	live atomic.Bool

	next, prev *Call // guarded by Guard.mu
	listed     bool  // guarded by Guard.mu
}

type callKey struct{}

// Value implements context.Context.
func (c *Call) Value(key any) any {
	if _, own := key.(callKey); own {
		return c
	}
	return c.Context.Value(key)
}

// FromContext returns the Call that a handler runs for; nil when it came over another listener.
func FromContext(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// tenant is the caller's, for logs.
func (c *Call) tenant() string {
	if c.Caller == nil {
		return ""
	}
	return c.Caller.Tenant
}

// statusWriter has the methods of grpc-go's transport beyond its public interface.
type statusWriter interface {
	WriteStatus(*status.Status) error
}

// handled notes that the call's handler runs.
func (c *Call) handled(ctx context.Context) {
	if w, ok := grpc.ServerTransportStreamFromContext(ctx).(statusWriter); ok {
		c.answer.Store(&w)
	}
}

// reject ends the call with an error for its caller. The first one counts. A call without a
// handler yet ends as cancelled.
func (c *Call) reject(e *apierror.Error) {
	if !c.rejected.CompareAndSwap(nil, e) {
		return
	}
	if w := c.answer.Load(); w != nil && (c.receiving.Load() || c.nameless) {
		_ = (*w).WriteStatus(e.GRPCStatus()) // the connection may be gone
	}
	c.cancel()
}

// End ends a call that still receives messages, with an error for its caller.
func (c *Call) End(e *apierror.Error) { c.reject(e) }

// reason is why the call's message could not be received.
func (c *Call) reason(err error) error {
	if err == nil {
		return nil
	}
	if e := c.rejected.Load(); e != nil {
		return e
	}
	return err
}

// received counts the bytes of a message that has been decoded.
func (c *Call) received(m any) error {
	if err := noted(m); err != nil {
		return err
	}
	if !c.live.Load() {
		c.receiving.Store(false)
	}
	return Refused(c.account.Take(ledger.Body, int64(size(m))))
}

// passed releases the bytes that were counted of messages so far.
func (c *Call) passed() {
	c.account.Limit(ledger.Body, 0)
	if c.conn != nil {
		c.before.Store(c.conn.Received())
	}
}

// arrived is about how much of the call's message has come.
func (c *Call) arrived() int64 {
	if c.conn == nil {
		return 0
	}
	return c.conn.Received() - c.before.Load()
}

// receives reports whether the call's message is still on its way.
func (c *Call) receives() bool { return c.receiving.Load() && c.Err() == nil }

// end forgets the call. Its context ends with its stream, after the answer was sent.
func (c *Call) end() {
	c.guard.remove(c)
	c.account.Close() // it may have been listed no more
	if c.rejected.Load() != nil {
		c.guard.shedding.Store(false)
	}
}

var errStalled = errors.New("the caller does not read its responses")
