package ledger

import (
	"sync/atomic"
	"time"
)

// The least rate: a body or an answer that has moved less than leastRate bytes a second over its whole time, grace excepted, is slow.
const (
	grace     = 5 * time.Second
	leastRate = 16 << 10
)

// Hold is a body that arrives or an answer that leaves: something that its caller's pace keeps in memory.
type Hold struct {
	account *Account
	kind    Kind
	began   time.Time
	moved   atomic.Int64
	conn    *Conn // counts the moved bytes where the mover cannot; nil elsewhere
	before  int64 // of conn, when the Hold began
	end     func()

	next, prev *Hold // guarded by Ledger.mu
	ended      bool  // guarded by Ledger.mu
}

// Watch begins a Hold. end stops it, on another goroutine's behalf; it must not wait, and must not begin or end a Hold.
func (a *Account) Watch(h *Hold, k Kind, end func()) {
	l := a.ledger
	h.account, h.kind, h.end, h.began = a, k, end, time.Now()
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h.prev, h.next = l.holds.prev, &l.holds
	h.prev.next, h.next.prev = h, h
}

// WatchOn is Watch for the bytes that a connection sends: bytes sent since then have moved.
func (a *Account) WatchOn(c *Conn, h *Hold, k Kind, end func()) {
	if c != nil {
		h.conn, h.before = c, c.Sent()
	}
	a.Watch(h, k, end)
}

// Moved counts bytes that came or went.
func (h *Hold) Moved(n int) { h.moved.Add(int64(n)) }

// Done ends the Hold: when it has returned, end is not called any more. It may be called again, and for a Hold that did not begin.
func (h *Hold) Done() {
	if h.account == nil || h.account.ledger == nil {
		return
	}
	l := h.account.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	h.unlinkLocked()
}

func (h *Hold) unlinkLocked() {
	if h.next != nil {
		h.prev.next, h.next.prev = h.next, h.prev
		h.next, h.prev = nil, nil
	}
}

// Evicted reports whether the Hold was ended because its room was wanted.
func (h *Hold) Evicted() bool {
	if h.account == nil || h.account.ledger == nil {
		return false
	}
	h.account.ledger.mu.Lock()
	defer h.account.ledger.mu.Unlock()
	return h.ended
}

// slow reports whether the Hold is slower than the least rate.
func (h *Hold) slow(now time.Time) bool {
	age := now.Sub(h.began) - grace
	if age <= 0 {
		return false
	}
	moved := h.moved.Load()
	if h.conn != nil {
		moved = h.conn.written.Load() - h.before
	}
	return float64(moved) < age.Seconds()*leastRate
}

// evict ends the slow Hold that has the most room among the holders of the refused pot. It reports whether there was one.
func (l *Ledger) evict(asking *Account, refused error) bool {
	full := asFull(refused)
	if full == nil {
		return false
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	var victim *Hold
	most := int64(-1)
	for h := l.holds.next; h != &l.holds; h = h.next {
		if h.ended || h.kind.pot() != full.Kind.pot() || !h.slow(now) || !asking.shares(h.account, full) {
			continue
		}
		if held := h.account.Held(h.kind); held > most {
			victim, most = h, held
		}
	}
	if victim == nil {
		return false
	}
	victim.ended = true
	l.metrics.Evicted.Add(victim.kind)
	victim.end()
	return true
}
