package replay

import (
	"container/heap"
)

// event is something that happens at a moment of virtual time.
type event struct {
	at   float64
	seq  uint64 // orders events of one moment
	kind eventKind
	n    int    // call or engine
	gen  uint32 // of the engine when it was scheduled
	do   func()
}

type eventKind uint8

const (
	eventArrival eventKind = iota
	eventEngine
	eventDo
)

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }

func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}

func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *eventHeap) Push(x any) { *h = append(*h, x.(event)) }

func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

// clock is virtual time: the events to come, in their order.
type clock struct {
	now    float64
	events eventHeap
	seq    uint64
}

func (c *clock) schedule(e event) {
	c.seq++
	e.seq = c.seq
	heap.Push(&c.events, e)
}

// after runs do when delay seconds have passed.
func (c *clock) after(delay float64, do func()) {
	c.schedule(event{at: c.now + delay, kind: eventDo, do: do})
}

// waits adds up the times to the first token while calls still wait.
type waits struct {
	waiting int     // calls that have arrived and have no first token
	since   float64 // the sum of their arrivals
	waited  float64 // the sum of all waits that are over
}

func (w *waits) begin(now float64) { w.waiting, w.since = w.waiting+1, w.since+now }

// leave ends a wait that counts for nothing.
func (w *waits) leave(arrived float64) { w.waiting, w.since = w.waiting-1, w.since-arrived }

func (w *waits) end(now, arrived float64) {
	w.leave(arrived)
	w.waited += now - arrived
}

// mean is the mean time to the first token over n calls if no call waited any longer: it only grows.
func (w *waits) mean(now float64, n int) float64 {
	return (w.waited + float64(w.waiting)*now - w.since) / float64(n)
}
