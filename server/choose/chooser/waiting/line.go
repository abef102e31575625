package waiting

import (
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// line has the requests for a model that wait, and the memory of its requests.
type line struct {
	*evaluate.Model
	hold   *holdqueue.Line
	memory *memoryGate

	visiting sync.Mutex               // held during a visit of the hold queue
	again    atomic.Bool              // another visit was requested during a visit
	wakeAt   atomic.Int64             // when the next visit may find room, on the chooser's scale; 0: never
	planned  map[replica.Slot]float64 // of the visit under way; guarded by visiting
	spared   replica.Slot             // the rank that the visit under way sends nothing to; guarded by visiting
	sharers  sharers                  // guarded by visiting
	expected forks
	// visited is when the last visit was, on the chooser's scale; wanted the ranks that the requests
	// which remained wait for; that map is never written again.
	visited atomic.Int64
	wanted  atomic.Pointer[map[replica.Slot]float64]
}

func newLine(queue *holdqueue.Queue, of *evaluate.Model) *line {
	return &line{Model: of, hold: queue.NewLine(), memory: newMemoryGate(queue), planned: map[replica.Slot]float64{}, spared: replica.NoSlot}
}
