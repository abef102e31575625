package registry

import (
	"container/heap"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// slotPool hands out dense slots, the lowest free one first, so that tables indexed by slot stay short.
type slotPool struct {
	next replica.Slot
	free slotHeap
}

func (p *slotPool) take(n int) []replica.Slot {
	slots := make([]replica.Slot, n)
	for i := range slots {
		if len(p.free) > 0 {
			slots[i] = heap.Pop(&p.free).(replica.Slot)
		} else {
			slots[i] = p.next
			p.next++
		}
	}
	return slots
}

func (p *slotPool) give(slots []replica.Slot) {
	for _, s := range slots {
		heap.Push(&p.free, s)
	}
}

type slotHeap []replica.Slot

func (h slotHeap) Len() int           { return len(h) }
func (h slotHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h slotHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *slotHeap) Push(x any)        { *h = append(*h, x.(replica.Slot)) }
func (h *slotHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
