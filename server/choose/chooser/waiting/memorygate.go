package waiting

import (
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
)

// memoryGate holds the calls of programs without a place while no rank has memory for them. It stands before the hold queue.
type memoryGate struct {
	hold *holdqueue.Line // within a tenant children first, then programs that have begun, then first come, first served
	pace memoryPace

	visiting sync.Mutex
	visited  atomic.Int64 // when the last visit was, on the chooser's scale
	wakeAt   atomic.Int64 // when the next one is due; 0: never
}

func newMemoryGate(queue *holdqueue.Queue) *memoryGate {
	return &memoryGate{hold: queue.NewLine()}
}
