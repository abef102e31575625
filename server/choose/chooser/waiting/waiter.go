package waiting

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/booking"
	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// Waiter is a request in line.
type Waiter struct {
	req     *ask.Request
	line    *line
	ticket  *holdqueue.Ticket
	arrived time.Time                    // the wait for memory included
	Answer  chan answer                  // of Choose
	deliver func(*booking.Choice, error) // of Submit
	counts  *Counts
	// overlaps is the index's answer at the time matched.
	overlaps []kvindex.Overlap
	matched  time.Time
	// memory is the request's wait for memory; nil: it did not wait for any.
	memory *memoryWait
	// yields is how it lets others pass.
	yields yielding
	// pulls is how it waits for copies of its prompt's beginning.
	pulls pulling
	// call is its session's in the ledger of programs, full the ranks without memory for it.
	call programs.Call
	full []replica.Slot
	// stream is set while it waits in the hold queue and its first token counts.
	stream bool
}

// Pools knows the replicas of pools as they are now.
type Pools interface {
	// Serving returns the replicas of a model's pool, by the pool's name or the name that the replicas know; nil when there is none. The list is
	// not changed later.
	Serving(model, served string) []*replica.Replica
}

// renew has a request that waits see the pool as it is now.
func (w *Waiter) renew(pools Pools) {
	if pools == nil {
		return
	}
	if now := pools.Serving(w.req.Model, w.req.Served); len(now) > 0 {
		w.req.Replicas = now
	}
}

type answer struct {
	Choice *booking.Choice
	Err    error
}

// waited is its wait as its booking records it. A nil waiter has not waited.
func (w *Waiter) waited() booking.Wait {
	switch {
	case w == nil:
		return booking.Wait{}
	case w.memory != nil:
		return booking.Wait{Waited: true, Since: w.arrived, Memory: w.memory.wait()}
	}
	return booking.Wait{Waited: true, Since: w.arrived, Planned: w.line.planned, Copy: w.pulls.copy, Way: w.pulls.way}
}

// left notes that it waits in the hold queue no longer.
func (w *Waiter) left() {
	if w.stream {
		w.stream = false
		w.line.Streams.Add(-1)
	}
}

// Leave takes the request out of line because its caller left. It returns false when the outcome is, or is being, delivered.
func (w *Waiter) Leave() bool {
	var left bool
	if w.memory != nil {
		left = w.leaveMemory()
	} else {
		if left = w.line.hold.Remove(w.ticket); left {
			w.left()
		}
	}
	if left {
		w.line.Claims.Leave(&w.call)
		w.counts.Left.Add(1)
	}
	return left
}

func (w *Waiter) end(choice *booking.Choice, err error) {
	w.left()
	if choice == nil {
		w.line.Claims.Leave(&w.call)
	}
	if w.deliver != nil {
		w.deliver(choice, err)
		return
	}
	w.Answer <- answer{choice, err}
}

// leaveMemory is leave for a request that waits for memory, or has waited.
func (w *Waiter) leaveMemory() bool {
	m := w.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.moved {
		return w.line.hold.Remove(w.ticket)
	}
	if m.gone {
		return false
	}
	w.line.memory.hold.Remove(w.ticket)
	m.gone = true
	return true
}
