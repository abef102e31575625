package holdqueue

import (
	"container/heap"
	"slices"
)

// The line is shared by start-time fair queueing: each tenant has a tag, the seconds of engines that it received
// divided by its weight, and the tenant with the smallest tag goes next. One that begins to wait starts at the line's
// clock, so that it neither pays for the time before nor has saved anything up. docs/adr/019-sharing-the-queue.md.

const (
	// maxTenants bounds the tenants that a line remembers while they have nothing in it.
	maxTenants = 1024
	// maxOwed bounds, in seconds at weight 1, the time that a tenant can recover after its requests found no room while
	// other tenants' requests did.
	maxOwed = 10
)

// tenant is one tenant's part of a line.
type tenant struct {
	name    string
	weight  float64
	tickets tickets // a heap
	bytes   int     // of those
	// work and cost sum up the tickets.
	work, cost float64
	// tag is its received time, divided by its weight; offered the same as the visit under way assumes it.
	tag, offered float64
	place        int // among the waiting ones; -1 when it does not
	visited      bool
	kept         []*Ticket // of the visit under way
}

// of finds a tenant, or makes one. mu is held.
func (l *Line) of(name string) *tenant {
	tn := l.tenants[name]
	if tn == nil {
		tn = &tenant{name: name, weight: l.weightOf(name), place: -1}
		l.tenants[name] = tn
	}
	return tn
}

// forget drops a tenant that has nothing in line and no more than the others. When no tenant waits, all are equal
// again. mu is held.
func (l *Line) forget(tn *tenant) {
	if len(l.active) == 0 {
		clear(l.tenants)
		l.clock = 0
		return
	}
	if len(tn.tickets) > 0 || tn.place >= 0 {
		return
	}
	if tn.tag <= l.clock || len(l.tenants)-len(l.active) > maxTenants {
		delete(l.tenants, tn.name)
	}
}

func (l *Line) weightOf(name string) float64 {
	if l.queue.shares == nil {
		return 1
	}
	if w := l.queue.shares.Weight(name); w > 0 {
		return w
	}
	return 1
}

// begin makes a tenant wait that did not. Its receipts beyond the other tenants' still count.
func (w *tenant) begin(clock float64) {
	w.tag = max(w.tag, clock)
	w.offered = w.tag
}

// catchUp bounds the debts to tenants. mu is held.
func (l *Line) catchUp() {
	for len(l.active) > 0 && l.active[0].tag < l.clock-maxOwed {
		tn := l.active[0]
		tn.tag = l.clock - maxOwed
		tn.offered = tn.tag
		heap.Fix(&l.active, 0)
	}
}

// next is the tenant whose ticket goes next; nil when all were offered. Tenants without further tickets are out of the heap
// until the visit ends. mu is held.
func (l *Line) next() *tenant {
	for len(l.active) > 0 {
		if tn := l.active[0]; len(tn.tickets) > 0 {
			return tn
		}
		heap.Remove(&l.active, 0)
	}
	return nil
}

// ahead is the work that would be done before t, of its own tenant and of the others while they catch up with it.
// mu is held.
func (l *Line) ahead(t *Ticket, tn *tenant) float64 {
	var work, cost float64
	for _, o := range tn.tickets {
		if o.before(t) {
			work += o.work
			cost += o.cost
		}
	}
	start := tn.tag
	if tn.place < 0 {
		start = max(start, l.clock)
	}
	start += cost / tn.weight
	for _, o := range l.active {
		if o == tn || o.cost <= 0 {
			continue
		}
		if before := (start - o.tag) * o.weight; before > 0 {
			work += o.work * min(1, before/o.cost)
		}
	}
	return work
}

// makeRoom has the tenant that holds most of the queue for its weight give up as many places, or as many bytes, when
// even then it holds no less of it than tn. mu is held.
func (l *Line) makeRoom(tn *tenant, places, bytes int) bool {
	size := func(w *tenant) float64 {
		if bytes > 0 {
			return float64(w.bytes) / w.weight
		}
		return float64(len(w.tickets)) / w.weight
	}
	var victim *tenant
	for _, o := range l.active {
		if o != tn && (victim == nil || size(o) > size(victim)) {
			victim = o
		}
	}
	if victim == nil {
		return false
	}
	out := victim.last(places, bytes)
	if out == nil {
		return false
	}
	freed := 0
	for _, t := range out {
		freed += t.Bytes
	}
	theirs, ours := float64(len(victim.tickets)-len(out))/victim.weight, float64(len(tn.tickets)+1)/tn.weight
	if bytes > 0 {
		theirs, ours = float64(victim.bytes-freed)/victim.weight, float64(tn.bytes+bytes)/tn.weight
	}
	if theirs < ours {
		return false
	}
	for _, t := range out {
		l.take(t)
		t.why = errShare
		l.queue.metrics.reject(errShare)
	}
	l.out = append(l.out, out...)
	l.pushed.Store(int64(len(l.out)))
	return true
}

// last is the end of the tenant's line that holds so many places or bytes; nil when that would take too many.
func (w *tenant) last(places, bytes int) []*Ticket {
	var out []*Ticket
	for places > 0 || bytes > 0 {
		var last *Ticket
		for _, t := range w.tickets {
			if (last == nil || last.before(t)) && !slices.Contains(out, t) {
				last = t
			}
		}
		if last == nil || len(out) == mostOut {
			return nil
		}
		out = append(out, last)
		places--
		bytes -= last.Bytes
	}
	return out
}

func (w *tenant) push(t *Ticket) {
	t.work, t.cost = t.Work, t.charge()
	w.work += t.work
	w.cost += t.cost
	heap.Push(&w.tickets, t)
}

func (w *tenant) pop() *Ticket {
	t := w.tickets[0]
	w.remove(t)
	return t
}

func (w *tenant) remove(t *Ticket) {
	heap.Remove(&w.tickets, t.place)
	if w.work, w.cost = w.work-t.work, w.cost-t.cost; len(w.tickets) == 0 {
		w.work, w.cost = 0, 0 // no rounding is kept
	}
}

// tickets is a heap of the tickets of one tenant: the next one to go is the first.
type tickets []*Ticket

func (h tickets) Len() int           { return len(h) }
func (h tickets) Less(i, j int) bool { return h[i].before(h[j]) }
func (h tickets) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *tickets) Push(x any) {
	t := x.(*Ticket)
	t.place = len(*h)
	*h = append(*h, t)
}

// Pop implements heap.Interface.
func (h *tickets) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return t
}

// tenants is a heap of the waiting tenants: the tenant with the smallest tag is the first.
type tenants []*tenant

func (h tenants) Len() int { return len(h) }
func (h tenants) Less(i, j int) bool {
	if h[i].offered != h[j].offered {
		return h[i].offered < h[j].offered
	}
	return h[i].name < h[j].name
}

func (h tenants) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *tenants) Push(x any) {
	t := x.(*tenant)
	t.place = len(*h)
	*h = append(*h, t)
}

// Pop implements heap.Interface.
func (h *tenants) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1], t.place = nil, -1
	*h = old[:len(old)-1]
	return t
}
