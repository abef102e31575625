package chooser

import (
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/choose/load"
)

// clock is the time of a chooser. Its scale, which the load estimate uses, is in nanoseconds since start.
type clock struct {
	source load.Clock
	start  time.Time
}

func newClock(source load.Clock) *clock { return &clock{source: source, start: source.Now()} }

func (k *clock) now() time.Time { return k.source.Now() }

func (k *clock) since(t time.Time) int64 { return int64(t.Sub(k.start)) }

func (k *clock) time(at int64) time.Time { return k.start.Add(time.Duration(at)) }

// passed is the present time on the chooser's scale.
func (k *clock) passed() time.Duration { return k.now().Sub(k.start) }

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

// changed has the requests that wait visited again, if there are any.
func (a *alarm) changed() {
	if a.queue.Len() > 0 {
		a.ring()
	}
}

func duration(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
