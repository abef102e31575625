package guard

import (
	"context"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// Limits bound one caller's resources at a gRPC listener.
type Limits struct {
	// Message bounds a message in bytes, and grpc-go's answers.
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

// Senders identifies the senders of calls.
type Senders interface {
	// Known reports the methods that need credentials. Of others that are registered (health, reflection), callers get few at once.
	Known(method string) bool
	// Admit identifies the sender of a call of a known method, or rejects it. It must not wait.
	Admit(ctx context.Context, method string, md metadata.MD) (*caller.Caller, error)
}

// Messages reads the messages of calls.
type Messages interface {
	// Decode reads a message from its bytes, which it must not keep.
	Decode(wire []byte, into proto.Message) error
	// Done takes each unary call's message when the handler has returned, before the answer is sent.
	Done(m proto.Message)
}

// plain are messages as package proto reads them.
type plain struct{}

func (plain) Decode(wire []byte, into proto.Message) error { return proto.Unmarshal(wire, into) }
func (plain) Done(proto.Message)                           {}

// Params are the parts that a Guard works with. Ledger and Senders are required.
type Params struct {
	// Ledger counts the memory of calls.
	Ledger  *ledger.Ledger
	Senders Senders
	// Messages may be nil: package proto reads them.
	Messages Messages

	Scope scope.Scope
}

// Guard protects a grpc.Server. Make one with New, give the server its Options and register
// services through Registrar.
type Guard struct {
	Params
	receive atomic.Int64 // nanoseconds
	stall   atomic.Int64 // nanoseconds
	limits  Limits
	ledger  *ledger.Ledger
	frames  *frames
	// registered are the methods of all services; it is complete before the server serves.
	registered map[string]bool
	metrics    *metrics
	// tick counts Run's rounds. It begins at 1.
	tick     atomic.Int64
	period   time.Duration
	shedding atomic.Bool
	// reclaimed is when garbage was last collected for frames, in Unix nanoseconds.
	reclaimed atomic.Int64

	mu    sync.Mutex
	calls Call // guarded by mu: the head of a ring, the newest call first
	// answers are the large ones that wait for their clients; guarded by mu.
	answers map[*waiting]struct{}
}

// New makes a Guard.
func New(l Limits, p Params) *Guard {
	if p.Messages == nil {
		p.Messages = plain{}
	}
	d := &Guard{Params: p, limits: l, ledger: p.Ledger, registered: map[string]bool{}, answers: map[*waiting]struct{}{}, metrics: newMetrics(p.Scope.Meters())}
	d.SetTimes(l.Receive, l.Stall)
	d.frames = &frames{ledger: p.Ledger, over: d.shed}
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

// The memory of calls: callCost is the fixed cost of one, its goroutine, its buffers and the bytes that the client may leave unread. Of
// methods that need no credentials, a connection has mostNameless calls at once.
const (
	callCost     = 48 << 10
	mostNameless = 8
)

// tap sees a call's header before anything of its message is kept.
func (d *Guard) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	known := d.Senders.Known(info.FullMethodName)
	if !known && !d.registered[info.FullMethodName] {
		return ctx, nil // it is answered at once
	}
	c := &Call{guard: d, began: d.tick.Load(), nameless: !known}
	var address string
	if p, ok := peer.FromContext(ctx); ok {
		if c.conn = ledger.ConnAt(p.Addr); c.conn == nil {
			address, _, _ = net.SplitHostPort(p.Addr.String()) // empty for an address without a port
		} else {
			c.before.Store(c.conn.Received())
		}
	}
	if known {
		var err error
		if c.Caller, err = d.Senders.Admit(ctx, info.FullMethodName, info.Header); err != nil {
			return nil, apierror.From(err)
		}
	}
	c.in.account = &c.account
	sender := Sender(c.Caller, c.conn, address)
	d.ledger.Open(&c.account, sender)
	if err := d.admit(c, sender); err != nil {
		d.metrics.Ended.Add(refusedFull)
		return nil, apierror.From(Refused(err))
	}
	c.conn.Begin()
	c.Context, c.cancel = context.WithCancel(ctx)
	c.receiving.Store(true)
	d.mu.Lock()
	c.listed = true
	c.prev, c.next = &d.calls, d.calls.next
	c.prev.next, c.next.prev = c, c
	d.mu.Unlock()
	return c, nil
}

// admit charges the fixed cost of a call. Of calls without credentials, the oldest ones end for a new one.
func (d *Guard) admit(c *Call, sender ledger.Sender) error {
	if !c.nameless {
		if err := c.conn.ProveFor(sender); err != nil {
			return err
		}
		return c.account.Take(ledger.Stream, callCost)
	}
	if !c.conn.TakeNameless(mostNameless) {
		return &ledger.Full{Kind: ledger.Stream, By: "nameless"}
	}
	err := c.account.Take(ledger.Stream, callCost)
	for err != nil && d.endOldestNameless() {
		err = c.account.Take(ledger.Stream, callCost)
	}
	if err != nil {
		c.conn.GiveNameless()
	}
	return err
}

// endOldestNameless ends the oldest of the calls without credentials, and reports whether there was one.
func (d *Guard) endOldestNameless() bool {
	d.mu.Lock()
	var oldest *Call
	for c := d.calls.prev; c != &d.calls; c = c.prev {
		if c.nameless && c.rejected.Load() == nil {
			oldest = c
			break
		}
	}
	d.mu.Unlock()
	if oldest == nil {
		return false
	}
	d.metrics.Ended.Add(madeRoom)
	oldest.account.Close() // its goroutine ends soon
	oldest.reject(refusal(&ledger.Full{Kind: ledger.Stream, By: "nameless"}))
	return true
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
		c.account.Close()
		c.conn.End()
		if c.nameless {
			c.conn.GiveNameless()
		}
	}
}

// shed ends one of the calls that are being received, when the messages that arrive take more than their share, and
// waits for its end before it ends another.
func (d *Guard) shed() {
	if !d.shedding.CompareAndSwap(false, true) {
		return
	}
	victim, party := d.victim()
	if victim != nil && party < d.ledger.Most(ledger.Body)/smallParty && d.reclaim() {
		victim = nil
	}
	if victim == nil {
		d.shedding.Store(false)
		return
	}
	d.metrics.Ended.Add(refusedFull)
	victim.reject(errFull())
}

// victim is the call with the largest message of the party that has the most on its way: a tenant, or a connection without one. Live
// calls go last: they are few, and others' reservations may hang on them.
//
// The second result is the number of bytes that the party has on its way.
func (d *Guard) victim() (*Call, int64) {
	type party struct {
		conn   *ledger.Conn
		tenant string
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	arrived := map[*ledger.Conn]int64{} // by connection: the bytes that have come since its oldest call began
	for c := d.calls.next; c != &d.calls; c = c.next {
		if c.receives() {
			arrived[c.conn] = max(arrived[c.conn], c.arrived())
		}
	}
	of := func(c *Call) party {
		if tenant := c.tenant(); tenant != "" {
			return party{nil, tenant}
		}
		return party{c.conn, ""}
	}
	type on struct {
		party
		conn *ledger.Conn
	}
	sums, seen := map[party]int64{}, map[on]bool{}
	for c := d.calls.next; c != &d.calls; c = c.next {
		if p := of(c); c.receives() && !seen[on{p, c.conn}] {
			seen[on{p, c.conn}] = true
			sums[p] += arrived[c.conn]
		}
	}
	var worst *Call
	for c := d.calls.next; c != &d.calls; c = c.next {
		if c.receives() && (worst == nil || d.worse(c, worst, sums[of(c)], sums[of(worst)])) {
			worst = c
		}
	}
	if worst == nil {
		return nil, 0
	}
	return worst, sums[of(worst)]
}

const (
	// smallParty is the part of the largest message that a party may have on its way without being the cause of a shortage.
	smallParty = 128
	// reclaimEvery bounds how often garbage is collected for frames.
	reclaimEvery = 250 * time.Millisecond
)

// reclaim frees the frames of calls that have ended: those count until they are collected, and must not cost other callers theirs. It
// reports false when that was done a moment ago and the frames take twice their limit nevertheless.
func (d *Guard) reclaim() bool {
	now, last := time.Now().UnixNano(), d.reclaimed.Load()
	if now-last >= int64(reclaimEvery) && d.reclaimed.CompareAndSwap(last, now) {
		runtime.GC()
		return true
	}
	return !d.ledger.Overdrawn()
}

// worse reports whether a is ended before b, whose parties have sums on their way.
func (d *Guard) worse(a, b *Call, sumA, sumB int64) bool {
	switch la, lb := a.live.Load(), b.live.Load(); {
	case la != lb:
		return lb
	case sumA != sumB:
		return sumA > sumB
	}
	return a.arrived() > b.arrived() // of equal ones the newest
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
	unread, gone := d.stalledAnswersLocked(now, stall)
	d.mu.Unlock()
	for _, w := range unread {
		d.metrics.Ended.Add(stalledReader)
		d.Scope.Log().Info("a gRPC connection was closed because its client does not read an answer", "tenant", w.tenant)
		w.end()
	}
	for _, w := range append(gone, unread...) {
		w.done()
	}
	d.shedding.Store(false) // a victim without a handler does not reset it
	for _, c := range slow {
		d.metrics.Ended.Add(slowSender)
		c.reject(apierror.New(apierror.BodyTimeout, "the message did not arrive in time (gateway.body_timeout)", nil))
	}
	for _, c := range stalled {
		d.metrics.Ended.Add(stalledReader)
		d.Scope.Log().Info("a gRPC call ended because its caller does not read its responses", "tenant", c.tenant())
		c.reject(apierror.New(apierror.Cancelled, "the caller does not read its responses (gateway.stall_timeout)", errStalled))
	}
}

// ticks is a time in rounds of Run.
func (d *Guard) ticks(limit time.Duration) int64 { return int64((limit + d.period - 1) / d.period) }
