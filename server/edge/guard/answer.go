package guard

import (
	"runtime"
	"sync/atomic"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/kvpilot/kvpilot/server/kit/ledger"
)

// smallAnswer is the size up to which an answer is part of the fixed cost of its call.
const smallAnswer = 16 << 10

// answered is a unary call's answer as the codec takes it: a large one is charged until the transport has sent it. That is after the
// call has ended, because grpc-go keeps bytes that do not fit the client's window.
func (c *Call) answered(out any) (any, error) {
	m, ok := out.(proto.Message)
	if !ok {
		return out, nil
	}
	n := int64(proto.Size(m))
	if n <= smallAnswer {
		return out, nil
	}
	if more := n - c.account.Held(ledger.Answer); more > 0 {
		if err := c.account.TakeSoon(c, ledger.Answer, more); err != nil {
			return nil, Refused(err)
		}
	}
	w := &waiting{guard: c.guard, conn: c.conn, tenant: c.tenant()}
	c.account.Move(&w.account, ledger.Answer, n)
	c.guard.waits(w)
	return &outgoing{message: m, waiting: w}, nil
}

// waiting is the part of an answer that outlives its message: the bytes charged while they wait for the client.
type waiting struct {
	guard   *Guard
	conn    *ledger.Conn // nil where connections are not counted
	tenant  string
	account ledger.Account
	hold    ledger.Hold
	over    atomic.Bool
	sent    int64 // guarded by Guard.mu: the connection's bytes sent at tick since
	since   int64 // guarded by Guard.mu
}

// done releases an answer that was sent, or dropped.
func (w *waiting) done() {
	if w.over.CompareAndSwap(false, true) {
		w.hold.Done()
		w.account.Close()
		w.guard.mu.Lock()
		delete(w.guard.answers, w)
		w.guard.mu.Unlock()
	}
}

// end closes the connection of a client that does not read: the call has ended, so that nothing else can be ended of it.
func (w *waiting) end() {
	if w.conn != nil {
		_ = w.conn.Close() // it is given up
	}
}

// outgoing is a large answer on its way to the codec.
type outgoing struct {
	message proto.Message
	waiting *waiting
}

// marshal encodes the answer into a buffer that ends the charge when the transport frees it. A dropped answer ends it when
// the garbage collector has freed the buffer, which is as long as it takes memory.
func (o *outgoing) marshal() (mem.BufferSlice, error) {
	wire, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(make([]byte, 0, o.waiting.account.Held(ledger.Answer)), o.message)
	if err != nil {
		o.waiting.done()
		return nil, err
	}
	b := &sentBuffer{wire: wire, waiting: o.waiting}
	runtime.AddCleanup(b, (*waiting).done, o.waiting)
	return mem.BufferSlice{mem.NewBuffer(&b.wire, b)}, nil
}

// sentBuffer is the pool of one buffer.
type sentBuffer struct {
	wire    []byte
	waiting *waiting
}

// Get implements mem.BufferPool. It is not called: the buffer was made elsewhere.
func (b *sentBuffer) Get(length int) *[]byte {
	made := make([]byte, length)
	return &made
}

// Put implements mem.BufferPool.
func (b *sentBuffer) Put(*[]byte) { b.waiting.done() }

// waits lists an answer, and lets the ledger end it when it leaves too slowly and its room is wanted.
func (d *Guard) waits(w *waiting) {
	d.mu.Lock()
	d.answers[w] = struct{}{}
	w.since = d.tick.Load()
	if w.conn != nil {
		w.sent = w.conn.Sent()
	}
	d.mu.Unlock()
	w.account.WatchOn(w.conn, &w.hold, ledger.Answer, w.end)
}

// stalledAnswers lists the answers whose clients read nothing for stall rounds, and the answers whose connections are gone; mu is held.
func (d *Guard) stalledAnswersLocked(now, stall int64) (stalled, gone []*waiting) {
	for w := range d.answers {
		switch {
		case w.conn == nil:
		case w.conn.Closed():
			gone = append(gone, w)
		case w.conn.Sent() != w.sent:
			w.sent, w.since = w.conn.Sent(), now
		case stall > 0 && now-w.since > stall:
			stalled = append(stalled, w)
		}
	}
	return stalled, gone
}
