package ledger

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
)

// Kind is a kind of holding.
type Kind uint8

// The kinds. Body and Answer share the pot of bytes, Stream and Connection the pot of places.
const (
	// Body is a request body, or a message, that is in memory.
	Body Kind = iota
	// Answer is an answer that is made, or waits for its reader.
	Answer
	// Stream is a request or call under way, at its fixed cost.
	Stream
	// Connection is an open connection, at its fixed cost.
	Connection
	kinds
)

// String is the kind as metrics name it.
func (k Kind) String() string {
	return [...]string{"body", "answer", "stream", "connection", "unknown"}[min(k, kinds)]
}

type potName uint8

const (
	bytesPot potName = iota
	placesPot
	pots
)

func (k Kind) pot() potName {
	if k == Body || k == Answer {
		return bytesPot
	}
	return placesPot
}

// Config bounds a Ledger.
type Config struct {
	// Bytes bounds request bodies and answers together.
	Bytes int64
	// Places bounds streams and connections together, in bytes of their fixed costs.
	Places int64
	// Files bounds the connections of all listeners together. Zero: no bound.
	Files int
}

// Ledger counts holdings. Make one with New.
type Ledger struct {
	config  Config
	pots    [pots]atomic.Int64
	held    [kinds]atomic.Int64
	frames  atomic.Int64 // the part of Body that belongs to no account
	metrics *metrics

	tenants, addresses parties
	strangers          parties // the addresses of connections whose senders are not known yet
	nameless           party   // the callers without credentials, where credentials are in use
	opened             atomic.Int64

	mu    sync.Mutex
	holds Hold // guarded by mu: the head of a ring

	roomMu sync.Mutex    // locked after mu
	room   chan struct{} // guarded by roomMu; closed when something is released
	// waiters is how many wait for room.
	waiters atomic.Int32

	conns connections
}

// New makes an empty Ledger.
func New(c Config, meter metric.MeterProvider) *Ledger {
	l := &Ledger{config: c, room: make(chan struct{})}
	l.holds.next, l.holds.prev = &l.holds, &l.holds
	l.conns.open, l.conns.free = map[*Conn]struct{}{}, sync.NewCond(&l.conns.mu)
	l.metrics = newMetrics(meter, l)
	return l
}

// Held is how much of a kind is held.
func (l *Ledger) Held(k Kind) int64 { return l.held[k].Load() }

// Most is the largest charge of a kind that can ever succeed: half of its pot.
func (l *Ledger) Most(k Kind) int64 { return l.limit(k.pot()) / 2 }

func (l *Ledger) limit(p potName) int64 {
	if p == bytesPot {
		return l.config.Bytes
	}
	return l.config.Places
}

// Arrived counts bytes that are in memory already and belong to no account yet. It reports false when they are more than their share.
func (l *Ledger) Arrived(n int64) bool {
	l.held[Body].Add(n)
	free := l.config.Bytes - l.pots[bytesPot].Add(n)
	return l.frames.Add(n) <= free
}

// Overdrawn reports whether bodies and answers hold more than twice their limit, which only Arrived can bring about.
func (l *Ledger) Overdrawn() bool { return l.pots[bytesPot].Load() > 2*l.config.Bytes }

// Passed counts bytes of Arrived less.
func (l *Ledger) Passed(n int64) {
	l.frames.Add(-n)
	l.held[Body].Add(-n)
	l.pots[bytesPot].Add(-n)
	l.wake()
}

// Full is the error of a charge that is refused.
type Full struct {
	Kind Kind
	// By is whose share is used up: process, tenant, address or nameless.
	By string
}

// Error implements error.
func (f *Full) Error() string {
	return fmt.Sprintf("no room for another %s: the share of the %s is used up", f.Kind, f.By)
}

// wake lets waiters for room try again.
func (l *Ledger) wake() {
	if l.waiters.Load() == 0 {
		return
	}
	l.roomMu.Lock()
	defer l.roomMu.Unlock()
	close(l.room)
	l.room = make(chan struct{})
}

func (l *Ledger) awaitRoom() <-chan struct{} {
	l.roomMu.Lock()
	defer l.roomMu.Unlock()
	return l.room
}

// patience is how long TakeSoon waits for ended holdings to be released.
const patience = 2 * time.Second

// TakeSoon is Take that ends slow holds when the charge is refused, and waits a moment for their room.
func (a *Account) TakeSoon(ctx context.Context, k Kind, n int64) error {
	err := a.take(k, n)
	if err == nil {
		return nil
	}
	l := a.ledger // not nil: it has refused
	l.waiters.Add(1)
	defer l.waiters.Add(-1)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		room := l.awaitRoom()
		if err = a.take(k, n); err == nil {
			return nil
		}
		if !l.evict(a, err) {
			break
		}
		select {
		case <-room:
			continue
		case <-timer.C:
		case <-ctx.Done():
		}
		break
	}
	l.metrics.refuse(err)
	return err
}
