package admission

import (
	"math"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// ageing is the work in seconds that a second of waiting makes up for: a request with a minute
	// of prefill lets cheaper ones pass for at most ten minutes. docs/adr/007-hold-queue.md.
	ageing = 0.1
	// memory is the time constant of what tenants are remembered to have had.
	memory = time.Minute
)

// Verdict is what a visitor decides about a ticket.
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
	count   atomic.Int64
	bytes   atomic.Int64
}

// New returns an empty queue.
func New(config Config, params Params) (*Queue, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	q := &Queue{}
	q.config.Store(&config)
	m, err := newMetrics(params.Meter, q)
	if err != nil {
		return nil, err
	}
	q.metrics = m
	return q, nil
}

// Update puts new bounds in force. Those who wait already stay, with the deadlines that they have.
func (q *Queue) Update(config Config) error {
	if err := config.Validate(); err != nil {
		return err
	}
	q.config.Store(&config)
	return nil
}

// Len is the number of tickets in all lines.
func (q *Queue) Len() int { return int(q.count.Load()) }

// Line is the queue of one pool.
type Line struct {
	queue *Queue
	count atomic.Int64

	mu      sync.Mutex
	tenants map[string]*tenant // guarded by mu
	start   time.Time          // zero of the keys' time; guarded by mu
}

// tenant is one tenant's part of a line.
type tenant struct {
	name    string
	tickets []*Ticket // in order
	cursor  int       // of the visit under way
	had     float64   // work released, fading with memory
	at      time.Time // when had was last brought up to date
}

// NewLine opens a line.
func (q *Queue) NewLine() *Line { return &Line{queue: q, tenants: map[string]*tenant{}} }

// Len is the number of tickets in this line.
func (l *Line) Len() int { return int(l.count.Load()) }

// Push puts t in line. servers is how many ranks serve the line and soonest the time until one of
// them has room; they tell whether t's deadline can be met. When t is refused, wait is the time
// after which a new try has a chance.
func (l *Line) Push(t *Ticket, now time.Time, servers int, soonest time.Duration) (wait time.Duration, err error) {
	q, config := l.queue, l.queue.config.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.start.IsZero() {
		l.start = now
	}
	t.arrived = now
	if t.Since.IsZero() {
		t.Since = now
	}
	t.key = l.key(t)
	expect := func() time.Duration { return soonest + seconds(l.ahead(t)/float64(max(1, servers))) }
	count, bytes := q.count.Add(1), q.bytes.Add(int64(t.Bytes))
	refuse := func(why error) (time.Duration, error) {
		q.count.Add(-1)
		q.bytes.Add(-int64(t.Bytes))
		q.metrics.refuse(why)
		return expect(), why
	}
	switch {
	case t.Accepted:
	case !t.Deadline.IsZero() && now.Add(expect()+seconds(t.Work)).After(t.Deadline):
		return refuse(ErrDeadline)
	case count > int64(config.MaxRequests):
		return refuse(ErrFull)
	case bytes > int64(config.MaxBytes):
		return refuse(ErrBytes)
	}
	if config.MaxWait > 0 && !t.Accepted {
		if latest := now.Add(config.MaxWait); t.Deadline.IsZero() || latest.Before(t.Deadline) {
			t.Deadline = latest
		}
	}
	who := l.tenants[t.Tenant]
	if who == nil {
		who = &tenant{name: t.Tenant, at: now}
		l.tenants[t.Tenant] = who
	}
	t.tenant = who
	who.insert(t)
	l.count.Add(1)
	return 0, nil
}

// key is the ticket's work plus its ageing: who began to wait later comes later. mu is held.
func (l *Line) key(t *Ticket) float64 { return t.Work + ageing*t.Since.Sub(l.start).Seconds() }

// Remove takes t out of line because its caller left; false when it was out already.
func (l *Line) Remove(t *Ticket) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.tenant == nil {
		return false
	}
	who := t.tenant
	for i := range who.tickets {
		if who.tickets[i] == t {
			who.tickets = append(who.tickets[:i], who.tickets[i+1:]...)
			if i < who.cursor {
				who.cursor--
			}
			break
		}
	}
	l.leave(t)
	l.tidy(t.arrived)
	return true
}

// Visit offers tickets to visit in the order in which they should go, until it stops, all were
// offered, or most were. visit may change a ticket's Work.
func (l *Line) Visit(now time.Time, most int, visit func(*Ticket) Verdict) {
	if l.count.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	penalty := l.rewind(now)
	var moved []*Ticket
	for range most {
		who := l.next(penalty)
		if who == nil {
			break
		}
		t := who.tickets[who.cursor]
		before := t.Work
		verdict := visit(t)
		if verdict == Keep || verdict == Stop {
			who.cursor++
			if t.Work != before {
				moved = append(moved, t)
			}
			if verdict == Stop {
				break
			}
			continue
		}
		who.tickets = append(who.tickets[:who.cursor], who.tickets[who.cursor+1:]...)
		l.leave(t)
		if verdict == Release {
			who.had += t.Work
			l.queue.metrics.released(now.Sub(t.arrived))
		}
	}
	for _, t := range moved {
		t.tenant.rekey(t, l.key(t))
	}
	l.tidy(now)
}

// Expired takes out the tickets whose deadline has passed and returns them.
func (l *Line) Expired(now time.Time) []*Ticket {
	if l.count.Load() == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*Ticket
	for _, who := range l.tenants {
		kept := who.tickets[:0]
		for _, t := range who.tickets {
			if t.Deadline.IsZero() || t.Deadline.After(now) {
				kept = append(kept, t)
				continue
			}
			out = append(out, t)
		}
		clear(who.tickets[len(kept):])
		who.tickets = kept
	}
	for _, t := range out {
		l.leave(t)
		l.queue.metrics.refuse(ErrTimeout)
	}
	return out
}

// Drain takes everything out and returns it.
func (l *Line) Drain() []*Ticket {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*Ticket
	for name, who := range l.tenants {
		out = append(out, who.tickets...)
		delete(l.tenants, name)
	}
	for _, t := range out {
		l.leave(t)
		l.queue.metrics.refuse(ErrShutdown)
	}
	return out
}

// leave settles the counts for a ticket that was taken out. mu is held.
func (l *Line) leave(t *Ticket) {
	t.tenant = nil
	l.count.Add(-1)
	l.queue.count.Add(-1)
	l.queue.bytes.Add(-int64(t.Bytes))
}

// ahead is the work of the tickets that would go before t. mu is held.
func (l *Line) ahead(t *Ticket) float64 {
	var sum float64
	for _, who := range l.tenants {
		for _, o := range who.tickets {
			if !o.before(t) {
				break
			}
			sum += o.Work
		}
	}
	return sum
}

// rewind sets the cursors to the start and returns what each tenant had more than the one that
// had least, among those who wait. mu is held.
func (l *Line) rewind(now time.Time) map[*tenant]float64 {
	waiting := 0
	least := math.Inf(1)
	for _, who := range l.tenants {
		who.cursor = 0
		who.fade(now)
		if len(who.tickets) > 0 {
			waiting++
			least = min(least, who.had)
		}
	}
	if waiting < 2 {
		return nil
	}
	penalty := make(map[*tenant]float64, waiting)
	for _, who := range l.tenants {
		penalty[who] = who.had - least
	}
	return penalty
}

// next returns the tenant whose ticket at the cursor goes next, nil when all were offered. mu is held.
func (l *Line) next(penalty map[*tenant]float64) *tenant {
	var best *tenant
	for _, who := range l.tenants {
		if who.cursor >= len(who.tickets) {
			continue
		}
		if best == nil {
			best = who
			continue
		}
		a, b := who.tickets[who.cursor], best.tickets[best.cursor]
		ka, kb := a.key+penalty[who], b.key+penalty[best]
		if a.Priority > b.Priority || a.Priority == b.Priority && (ka < kb || ka == kb && who.name < best.name) {
			best = who
		}
	}
	return best
}

// tidy forgets tenants who have nothing in line and had next to nothing lately. mu is held.
func (l *Line) tidy(now time.Time) {
	for name, who := range l.tenants {
		if len(who.tickets) > 0 {
			continue
		}
		if who.fade(now); who.had < 0.01 || len(l.tenants) > maxTenants {
			delete(l.tenants, name)
		}
	}
}

// maxTenants bounds the tenants that a line remembers; those beyond it start afresh.
const maxTenants = 1024

func (w *tenant) fade(now time.Time) {
	if d := now.Sub(w.at); d > 0 {
		w.had *= math.Exp(-d.Seconds() / memory.Seconds())
		w.at = now
	}
}

func (w *tenant) insert(t *Ticket) {
	i := sort.Search(len(w.tickets), func(i int) bool { return t.before(w.tickets[i]) })
	w.tickets = append(w.tickets, nil)
	copy(w.tickets[i+1:], w.tickets[i:])
	w.tickets[i] = t
}

// rekey moves t to where key puts it.
func (w *tenant) rekey(t *Ticket, key float64) {
	for i, o := range w.tickets {
		if o == t {
			w.tickets = append(w.tickets[:i], w.tickets[i+1:]...)
			t.key = key
			w.insert(t)
			return
		}
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
