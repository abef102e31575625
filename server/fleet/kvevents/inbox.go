package kvevents

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/sequence"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

// inbox holds the events of a feed that are not handled yet.
type inbox struct {
	queue        queue
	replies      chan reply
	restarted    atomic.Int64 // when a new engine process began, as other parts noticed; 0: none
	tickDue      atomic.Bool
	malformedDue atomic.Bool // a message came that is no batch
	waiting      atomic.Bool // live batches wait for a replay
}

func newInbox() inbox { return inbox{queue: newQueue(), replies: make(chan reply, maxReplies)} }

// hasWork reports whether there is something to handle now.
func (b *inbox) hasWork() bool {
	if b.restarted.Load() != 0 || b.tickDue.Load() || b.malformedDue.Load() || len(b.replies) > 0 {
		return true
	}
	n, _ := b.queue.size()
	return n > 0 && !b.waiting.Load()
}

type itemKind uint8

const (
	itemLive itemKind = iota // a batch from the event socket
	itemUp                   // a connection was made
	itemDown                 // it ended
)

// item is one event of the socket, in order.
type item struct {
	kind  itemKind
	epoch uint64 // the connection
	seq   uint64
	by    sequence.Publisher
	msg   *zmtp.Message
	at    time.Time
	err   error
	made  *made // of itemUp
}

// made is where a new connection leads.
type made struct {
	sockets  replica.Events
	instance string // the engine process's name; empty when it is not known
}

func (it *item) payload() []byte { return it.msg.Frames[len(it.msg.Frames)-1] }

func (it *item) bytes() int64 {
	if it.msg == nil {
		return 0
	}
	return int64(it.msg.Cap())
}

// maxQueued bounds the batches in one queue, whatever their size.
const maxQueued = 1 << 12

// queue holds the events of the event socket that are not handled yet. Readers push; the goroutine that has
// the feed's turn pops.
type queue struct {
	room  chan struct{} // holds a token when readers that wait for room should look again
	mu    sync.Mutex
	items []item // guarded by mu; the live part starts at head
	head  int    // guarded by mu
	bytes int64  // guarded by mu
	shut  bool   // guarded by mu
	// wakeAt is how many bytes may be left when a waiting reader is woken; negative: none waits. guarded by mu
	wakeAt int64
}

func newQueue() queue { return queue{room: make(chan struct{}, 1), wakeAt: -1} }

// pushed is the result of a push.
type pushed uint8

const (
	pushDone pushed = iota
	pushFull        // it is a batch and has to wait for room
	pushShut        // the queue takes nothing any more
)

// push appends it, unless it is a batch and does not fit. An empty queue has room for any batch, so that a feed
// advances whatever others hold.
func (q *queue) push(it item, fits func(queued int64) bool) pushed {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.items) - q.head
	switch {
	case q.shut:
		return pushShut
	case it.kind == itemLive && n > 0 && (n >= maxQueued || !fits(q.bytes)):
		q.wakeAt = q.bytes / 2 // each wake-up is worth several batches
		return pushFull
	}
	if q.head > 64 && q.head > len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, it)
	q.bytes += it.bytes()
	return pushDone
}

// peek returns the oldest item and leaves it.
func (q *queue) peek() (item, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == len(q.items) {
		return item{}, false
	}
	return q.items[q.head], true
}

// ended reports whether the end of a connection, or a later one, waits in the queue.
func (q *queue) ended(epoch uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.ContainsFunc(q.items[q.head:], func(it item) bool {
		return it.kind == itemDown && it.epoch == epoch || it.kind == itemUp && it.epoch > epoch
	})
}

// drop removes the oldest item.
func (q *queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bytes -= q.items[q.head].bytes()
	q.items[q.head] = item{}
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	if q.bytes <= q.wakeAt {
		q.wakeAt = -1
		q.wake()
	}
}

// wake has a waiting reader look again.
func (q *queue) wake() {
	select {
	case q.room <- struct{}{}:
	default:
	}
}

// close empties the queue for good and returns its items.
func (q *queue) close() []item {
	q.mu.Lock()
	defer q.mu.Unlock()
	rest := q.items[q.head:]
	q.items, q.head, q.bytes, q.shut = nil, 0, 0, true
	q.wake()
	return rest
}

func (q *queue) size() (items int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) - q.head, q.bytes
}
