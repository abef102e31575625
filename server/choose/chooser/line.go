package chooser

import (
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// line is the chooser's state of a model: the memory of policies that need some, and its part of the hold queue.
type line struct {
	model  string
	cursor atomic.Uint32
	pool   atomic.Pointer[pool] // of the last request
	ring   atomic.Pointer[poolRing]
	tree   atomic.Pointer[selector.Tree]
	hold   *holdqueue.Line
	memory *memoryGate

	visiting sync.Mutex               // held during a visit of the hold queue
	again    atomic.Bool              // another visit was requested during a visit
	wakeAt   atomic.Int64             // when the next visit may find room, on the chooser's scale; 0: never
	planned  map[replica.Slot]float64 // of the visit under way; guarded by visiting
	// visited is when the last visit was, on the chooser's scale; wanted the ranks that the requests
	// which remained wait for; that map is never written again.
	visited atomic.Int64
	wanted  atomic.Pointer[map[replica.Slot]float64]
	// streams is the number of requests that wait in hold and whose first token counts.
	streams atomic.Int64
	lengths lengths
}

func newLine(model string, queue *holdqueue.Queue) *line {
	return &line{model: model, hold: queue.NewLine(), memory: newMemoryGate(queue), planned: map[replica.Slot]float64{}}
}
