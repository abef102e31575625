package eventbench

import (
	"context"
	"runtime"
	"syscall"
	"time"
)

// sleeper is a thread that only sleeps.
type sleeper struct {
	cancel context.CancelFunc
	over   chan []time.Duration
}

// watchSleep starts a thread that sleeps a millisecond at a time and notes how much longer it took.
func watchSleep(ctx context.Context) *sleeper {
	ctx, cancel := context.WithCancel(ctx)
	s := &sleeper{cancel: cancel, over: make(chan []time.Duration, 1)}
	go func() {
		runtime.LockOSThread() // the system's wake-ups, not the Go scheduler's
		defer runtime.UnlockOSThread()
		var over []time.Duration
		for pause := time.Millisecond; ctx.Err() == nil; {
			ts := syscall.NsecToTimespec(pause.Nanoseconds())
			begin := time.Now()
			if syscall.Nanosleep(&ts, nil) == nil {
				over = append(over, time.Since(begin)-pause)
			}
		}
		s.over <- over
	}()
	return s
}

// stop ends the thread and returns its readings.
func (s *sleeper) stop() []time.Duration {
	s.cancel()
	return <-s.over
}
