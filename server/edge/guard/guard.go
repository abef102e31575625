package guard

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
)

// Limits bound what one caller may hold at a gRPC listener.
type Limits struct {
	// Message bounds a message in bytes, and what grpc-go sends.
	Message int
	// Streams bounds the calls of one connection at once.
	Streams uint32
	// HeaderBytes bounds a call's metadata.
	HeaderBytes uint32
	// Handshake bounds the time to a connection's first settings, TLS included.
	Handshake time.Duration
	// Idle is the life of a connection without a call.
	Idle time.Duration
	// Receive bounds the time in which a caller sends its message.
	Receive time.Duration
	// Stall bounds the time for which a message to the caller may wait to be read. Zero: for ever.
	Stall time.Duration
}

// Params are what a Guard works with. Budget and Known are required.
type Params struct {
	Budget *Budget
	// Known reports the methods that are protected; others (health, reflection) pass.
	Known func(method string) bool
	// Prompts reports the methods that are rejected while the budget is full.
	Prompts func(method string) bool
	// Admit identifies the sender of a call, or rejects it. It must not wait. Nil admits all.
	Admit func(ctx context.Context, method string, md metadata.MD) (*caller.Caller, error)
	// Decode reads a message from its bytes, which it must not keep; nil is proto.Unmarshal.
	Decode func(wire []byte, into proto.Message) error
	// Done, if not nil, takes each unary call's message when the handler has returned, before the answer is sent.
	Done func(proto.Message)

	Log   *slog.Logger
	Meter metric.MeterProvider
}

// Guard protects a grpc.Server. Make one with New, give the server its Options and register
// services through Registrar.
type Guard struct {
	Params
	receive atomic.Int64 // nanoseconds
	stall   atomic.Int64 // nanoseconds
	limits  Limits
	budget  *Budget
	frames  *frames
	metrics *metrics
	// tick counts Run's rounds. It begins at 1.
	tick     atomic.Int64
	period   time.Duration
	shedding atomic.Bool

	mu    sync.Mutex
	calls Call // guarded by mu: the head of a ring, the newest call first
}

// New makes a Guard.
func New(l Limits, p Params) *Guard {
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	if p.Decode == nil {
		p.Decode = proto.Unmarshal
	}
	d := &Guard{Params: p, limits: l, budget: p.Budget, metrics: newMetrics(p.Meter, p.Budget)}
	d.SetTimes(l.Receive, l.Stall)
	d.frames = &frames{budget: p.Budget, over: d.shed}
	d.calls.next, d.calls.prev = &d.calls, &d.calls
	d.tick.Store(1)
	d.period = time.Second
	for _, limit := range []time.Duration{l.Receive, l.Stall} {
		if limit > 0 {
			d.period = min(d.period, max(limit/8, time.Millisecond))
		}
	}
	return d
}

// SetTimes changes how long callers may take to send, and to read; calls under way are measured by it too. How exactly
// is as it was at the beginning: an eighth of the shorter one, at most a second.
func (d *Guard) SetTimes(receive, stall time.Duration) {
	d.receive.Store(int64(receive))
	d.stall.Store(int64(stall))
}

// tap sees a call's header before anything of its message is kept.
func (d *Guard) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	if !d.Known(info.FullMethodName) {
		return ctx, nil
	}
	c := &Call{guard: d, began: d.tick.Load()}
	if d.Admit != nil {
		var err error
		if c.Caller, err = d.Admit(ctx, info.FullMethodName, info.Header); err != nil {
			return nil, apierror.From(err)
		}
	}
	if d.budget.full() && d.Prompts(info.FullMethodName) {
		d.metrics.count(refusedFull)
		return nil, errFull()
	}
	c.Context, c.cancel = context.WithCancel(ctx)
	c.receiving.Store(true)
	d.mu.Lock()
	c.listed = true
	c.prev, c.next = &d.calls, d.calls.next
	c.prev.next, c.next.prev = c, c
	d.mu.Unlock()
	return c, nil
}

func (d *Guard) remove(c *Call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unlist(c)
}

func (d *Guard) unlist(c *Call) {
	if c.listed {
		c.listed = false
		c.prev.next, c.next.prev = c.next, c.prev
		c.next, c.prev = nil, nil
	}
}

// shed ends the newest of the calls that are being received, when the budget is exceeded, and
// waits for its end before it ends another.
func (d *Guard) shed() {
	if !d.shedding.CompareAndSwap(false, true) {
		return
	}
	victim := d.victim()
	if victim == nil {
		d.shedding.Store(false)
		return
	}
	d.metrics.count(refusedFull)
	victim.reject(errFull())
}

// victim is the newest call that is being received. Live ones go last: they are few, and others'
// reservations may hang on them.
func (d *Guard) victim() (live *Call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := d.calls.next; c != &d.calls; c = c.next {
		switch {
		case !c.receiving.Load() || c.Err() != nil:
		case !c.live.Load():
			return c
		case live == nil:
			live = c
		}
	}
	return live
}

// Run ends calls that take too long, until ctx ends.
func (d *Guard) Run(ctx context.Context) error {
	tick := time.NewTicker(d.period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			d.round(d.tick.Add(1))
		}
	}
}

// round checks every call once.
func (d *Guard) round(now int64) {
	receive, stall := d.ticks(time.Duration(d.receive.Load())), d.ticks(time.Duration(d.stall.Load()))
	var slow, stalled []*Call
	d.mu.Lock()
	for c := d.calls.next; c != &d.calls; {
		next := c.next
		since := c.sending.Load()
		switch {
		case c.Err() != nil: // it ended before its handler began, or is about to end
			d.unlist(c)
		case c.receiving.Load() && !c.live.Load() && receive > 0 && now-c.began > receive:
			slow = append(slow, c)
		case since > 0 && stall > 0 && now-since > stall:
			stalled = append(stalled, c)
		}
		c = next
	}
	d.mu.Unlock()
	d.shedding.Store(false) // a victim without a handler does not reset it
	for _, c := range slow {
		d.metrics.count(slowSender)
		c.reject(apierror.New(apierror.BodyTimeout, "the message did not arrive in time (gateway.body_timeout)", nil))
	}
	for _, c := range stalled {
		d.metrics.count(stalledReader)
		d.Log.Info("a gRPC call ended because its caller does not read its responses", "tenant", c.tenant())
		c.reject(apierror.New(apierror.Cancelled, "the caller does not read its responses (gateway.stall_timeout)", errStalled))
	}
}

// ticks is a time in rounds of Run.
func (d *Guard) ticks(limit time.Duration) int64 { return int64((limit + d.period - 1) / d.period) }
