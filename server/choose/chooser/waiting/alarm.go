package waiting

import (
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
)

// alarm wakes Run before its time.
type alarm struct {
	queue *holdqueue.Queue
	wake  chan struct{}
	// sleepsUntil is until when Run sleeps, on the chooser's scale; 0 while it does not.
	sleepsUntil atomic.Int64
}

func newAlarm(queue *holdqueue.Queue) *alarm {
	return &alarm{queue: queue, wake: make(chan struct{}, 1)}
}

// ring wakes Run.
func (a *alarm) ring() {
	select {
	case a.wake <- struct{}{}:
	default: // it is awake
	}
}

// ringBefore wakes Run if it sleeps beyond the moment at of the chooser's scale.
func (a *alarm) ringBefore(at int64) {
	if at < a.sleepsUntil.Load() {
		a.ring()
	}
}

// Changed has the requests that wait visited again, if there are any.
func (a *alarm) Changed() {
	if a.queue.Len() > 0 {
		a.ring()
	}
}
