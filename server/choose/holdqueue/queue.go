package holdqueue

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// leastCharge is the least that a request costs its tenant, in seconds.
	leastCharge = 0.001
	// mostOut bounds the requests that make room for one of another tenant.
	mostOut = 8
)

// Verdict is a visitor's decision about a ticket.
type Verdict uint8

// The verdicts.
const (
	// Keep leaves the ticket in line.
	Keep Verdict = iota
	// Release takes it out: it goes to a rank.
	Release
	// Drop takes it out: it is refused or its caller is gone.
	Drop
	// Stop leaves it in line and ends the visit.
	Stop
)

// Queue holds the lines and their common bounds. Make one with New.
type Queue struct {
	config  atomic.Pointer[Config]
	metrics *metrics
	shares  Shares
	count   atomic.Int64
	bytes   atomic.Int64
}

// New returns an empty queue. config must be valid.
func New(config Config, params Params) *Queue {
	q := &Queue{shares: params.Shares}
	q.config.Store(&config)
	q.metrics = newMetrics(params.Scope.Meters(), q)
	return q
}

// Update applies new bounds. config must be valid. Tickets that wait already keep their place and their deadlines.
func (q *Queue) Update(config Config) { q.config.Store(&config) }

// Len is the number of tickets in all lines.
func (q *Queue) Len() int { return int(q.count.Load()) }

// Line is the queue of one pool.
type Line struct {
	queue *Queue
	count atomic.Int64

	mu      sync.Mutex
	tenants map[string]*tenant // guarded by mu
	active  tenants            // the waiting ones, a heap; guarded by mu
	clock   float64            // virtual time: the start of the service given last; guarded by mu
	start   time.Time          // zero of the keys' time; guarded by mu
	soonest time.Time          // no ticket's deadline is before it; zero: none has one; guarded by mu
	number  uint64             // of tickets so far; guarded by mu
	out     []*Ticket          // pushed out by other tenants' requests; guarded by mu
	pushed  atomic.Int64       // how many those are
}

// NewLine opens a line.
func (q *Queue) NewLine() *Line { return &Line{queue: q, tenants: map[string]*tenant{}} }

// Len is the number of tickets in this line.
func (l *Line) Len() int { return int(l.count.Load()) }

// Push puts t in line. servers is how many ranks serve the line and soonest the time until one of
// them has room; t's deadline is held against both. When t is rejected, wait is the time
// after which a retry has a chance. When the queue is full, t takes the place of the last request of the
// tenant that has more of it than its share; the next call of Expired returns that one.
func (l *Line) Push(t *Ticket, now time.Time, servers int, soonest time.Duration) (wait time.Duration, err error) {
	q, config := l.queue, l.queue.config.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.start.IsZero() {
		l.start = now
	}
	t.arrived = now.Add(-t.Age)
	l.number++
	t.number = l.number
	tn := l.of(t.Tenant)
	defer l.forget(tn)
	expect := func() time.Duration { return soonest + seconds(l.ahead(t, tn)/float64(max(1, servers))) }
	count := q.count.Add(1)
	q.bytes.Add(int64(t.Bytes))
	tooMuch := func() int { return int(q.bytes.Load()) - int(config.MaxBytes) }
	refuse := func(why error) (time.Duration, error) {
		q.count.Add(-1)
		q.bytes.Add(-int64(t.Bytes))
		q.metrics.reject(why)
		return expect(), why
	}
	t.key = l.key(t)
	switch {
	case !t.Deadline.IsZero() && now.Add(expect()+seconds(t.Work)).After(t.Deadline):
		return refuse(errDeadline)
	case count > int64(config.MaxRequests) && !l.makeRoom(tn, 1, 0):
		return refuse(errFull)
	case tooMuch() > 0 && !l.makeRoom(tn, 0, tooMuch()):
		return refuse(errBytes)
	}
	if config.MaxWait > 0 {
		if latest := t.arrived.Add(config.MaxWait); t.Deadline.IsZero() || latest.Before(t.Deadline) {
			t.Deadline = latest
		}
	}
	if d := t.Deadline; !d.IsZero() && (l.soonest.IsZero() || d.Before(l.soonest)) {
		l.soonest = d
	}
	l.enter(t, tn)
	return 0, nil
}

// enter puts a ticket into its tenant's heap and the counts. mu is held.
func (l *Line) enter(t *Ticket, tn *tenant) {
	t.tenant = tn
	tn.bytes += t.Bytes
	tn.push(t)
	l.count.Add(1)
	if tn.place < 0 {
		l.tenants[tn.name] = tn // it was forgotten if its others have left
		tn.begin(l.clock)
		heap.Push(&l.active, tn)
	}
}

// Remove takes t out of line because its caller left; false when it was out already.
func (l *Line) Remove(t *Ticket) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.tenant == nil {
		return false
	}
	l.take(t)
	return true
}

// take takes a ticket that waits out of line. mu is held, and no visit is under way.
func (l *Line) take(t *Ticket) {
	tn := t.tenant
	tn.remove(t)
	l.leave(t)
	if len(tn.tickets) == 0 {
		heap.Remove(&l.active, tn.place)
		l.forget(tn)
	}
}

// Visit offers tickets to visit in the order in which they should go, until it stops, all were
// offered, or most were: each tenant as much as its weight says, in predicted seconds. visit may change a
// ticket's Work and Cost.
func (l *Line) Visit(now time.Time, most int, visit func(*Ticket) Verdict) {
	if l.count.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.catchUp()
	var touched []*tenant
	for range most {
		tn := l.next()
		if tn == nil {
			break
		}
		if !tn.visited {
			tn.visited = true
			touched = append(touched, tn)
		}
		t := tn.pop()
		verdict := visit(t)
		tn.weight = l.weightOf(tn.name)
		cost := t.charge() / tn.weight
		tn.offered += cost
		if verdict == Keep || verdict == Stop {
			tn.kept = append(tn.kept, t)
		} else {
			l.leave(t)
			if verdict == Release {
				l.clock = max(l.clock, tn.tag)
				tn.tag += cost
				l.queue.metrics.released(now.Sub(t.arrived))
			} else {
				tn.offered -= cost
			}
		}
		heap.Fix(&l.active, tn.place)
		if verdict == Stop {
			break
		}
	}
	l.settle(touched)
}

// settle ends a visit: the remaining tickets are in line again, each at the place of its work. mu is held.
func (l *Line) settle(touched []*tenant) {
	for _, tn := range touched {
		for _, t := range tn.kept {
			t.key = l.key(t)
			tn.push(t)
		}
		clear(tn.kept)
		tn.kept = tn.kept[:0]
		tn.offered, tn.visited = tn.tag, false
		switch waits := len(tn.tickets) > 0; {
		case waits && tn.place < 0:
			heap.Push(&l.active, tn)
		case waits:
			heap.Fix(&l.active, tn.place)
		case tn.place >= 0:
			heap.Remove(&l.active, tn.place)
		}
	}
	for _, tn := range touched {
		l.forget(tn)
	}
}

// Expired takes out the tickets whose deadline has passed and returns them, with the tickets that had to make room for
// other tenants' since the last call; Why distinguishes them.
func (l *Line) Expired(now time.Time) []*Ticket {
	if l.count.Load() == 0 && l.pushed.Load() == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.out
	l.out = nil
	l.pushed.Store(0)
	if l.soonest.IsZero() || l.soonest.After(now) {
		return out
	}
	l.soonest = time.Time{}
	var late []*Ticket
	for _, tn := range l.active {
		for _, t := range tn.tickets {
			switch d := t.Deadline; {
			case d.IsZero():
			case !d.After(now):
				late = append(late, t)
			case l.soonest.IsZero() || d.Before(l.soonest):
				l.soonest = d
			}
		}
	}
	for _, t := range late {
		l.take(t)
		t.why = errTimeout
		l.queue.metrics.reject(errTimeout)
	}
	return append(out, late...)
}

// Drain takes everything out and returns it.
func (l *Line) Drain() []*Ticket {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.out
	for _, tn := range l.active {
		for _, t := range tn.tickets {
			t.why = errShutdown
			l.leave(t)
			l.queue.metrics.reject(errShutdown)
		}
		out = append(out, tn.tickets...)
	}
	l.out, l.active, l.clock = nil, nil, 0
	l.pushed.Store(0)
	clear(l.tenants)
	return out
}

// leave settles the counts for a ticket that was taken out. mu is held.
func (l *Line) leave(t *Ticket) {
	t.tenant.bytes -= t.Bytes
	t.tenant = nil
	l.count.Add(-1)
	l.queue.count.Add(-1)
	l.queue.bytes.Add(-int64(t.Bytes))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
