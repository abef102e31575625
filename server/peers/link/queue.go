package link

import "sync"

const (
	// maxWaiting bounds the bytes that may wait for a peer; a link that exceeds it is closed.
	maxWaiting = 32 << 20
	// maxBatch and maxItems bound the part of them in one message, unless one item alone is larger.
	maxBatch = 1 << 20
	maxItems = 4096
)

// queue holds the messages that wait to be sent to a peer. Producers never block.
type queue[T any] struct {
	size func(T) int
	wake chan struct{} // holds a token when there is something to do

	mu    sync.Mutex
	items []T  // guarded by mu
	bytes int  // guarded by mu
	shut  bool // guarded by mu
	spare []T  // guarded by mu: the slice before, to be filled again
}

func newQueue[T any](size func(T) int) *queue[T] {
	return &queue[T]{size: size, wake: make(chan struct{}, 1)}
}

// push adds an item. It returns false when the queue is over its bound, and closes it then; a closed queue drops items.
func (q *queue[T]) push(item T) bool {
	n := q.size(item)
	q.mu.Lock()
	if q.shut {
		q.mu.Unlock()
		return true
	}
	if q.bytes += n; q.bytes > maxWaiting {
		q.shut, q.items = true, nil
		q.mu.Unlock()
		q.signal()
		return false
	}
	q.items = append(q.items, item)
	first := len(q.items) == 1
	q.mu.Unlock()
	if first {
		q.signal()
	}
	return true
}

func (q *queue[T]) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take returns the waiting items, at most a batch, and whether the queue is open. used is the batch before, which the caller does not need
// any more.
func (q *queue[T]) take(used []T) (batch []T, open bool) {
	clear(used)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.shut {
		return nil, false
	}
	if cap(used) > 0 && cap(used) <= maxItems {
		q.spare = used[:0]
	}
	if len(q.items) == 0 {
		return nil, true
	}
	n, bytes := 0, 0
	for ; n < len(q.items) && n < maxItems; n++ {
		size := q.size(q.items[n])
		if n > 0 && bytes+size > maxBatch {
			break
		}
		bytes += size
	}
	if n == len(q.items) {
		batch, q.items, q.spare, q.bytes = q.items, q.spare, nil, 0
		return batch, true
	}
	batch = append([]T(nil), q.items[:n]...)
	q.items = append(q.items[:0], q.items[n:]...)
	q.bytes -= bytes
	q.signal()
	return batch, true
}

// isOver reports whether the queue was closed.
func (q *queue[T]) isOver() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.shut
}

// close drops waiting and later items.
func (q *queue[T]) close() {
	q.mu.Lock()
	q.shut, q.items = true, nil
	q.mu.Unlock()
	q.signal()
}
