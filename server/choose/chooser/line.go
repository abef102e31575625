package chooser

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// line is what the chooser keeps per model: the memory of policies that need some, and its part of the hold queue.
type line struct {
	model  string
	cursor atomic.Uint32
	pool   atomic.Pointer[pool] // of the last request
	ring   atomic.Pointer[ringOf]
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

// lineFor returns the line of a model, made at first use.
func (c *Chooser) lineFor(model string) *line {
	if ln, ok := c.lines.Load(model); ok {
		return ln.(*line)
	}
	c.linesMu.Lock()
	defer c.linesMu.Unlock()
	if ln, ok := c.lines.Load(model); ok {
		return ln.(*line)
	}
	ln := &line{model: model, hold: c.queue.NewLine(), memory: newMemoryGate(c.queue), planned: map[replica.Slot]float64{}}
	ln.cursor.Store(rand.New(rand.NewPCG(c.seed.Load(), uint64(len(model)))).Uint32() >> 1)
	c.lines.Store(model, ln)
	list := append(append([]*line(nil), *c.lineList.Load()...), ln)
	c.lineList.Store(&list)
	return ln
}

func duration(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
