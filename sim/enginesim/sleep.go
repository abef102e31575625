package enginesim

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginesim/core"
)

// wakeTime is how long an engine takes to bring its weights back, in modelled time.
const wakeTime = time.Second

// slumber is the sleep of an engine: 0 while it is awake, else the level.
type slumber struct {
	mu    sync.Mutex
	level int // guarded by mu
}

func (s *slumber) now() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.level
}

func (s *slumber) set(level int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.level = level
}

// sleepRoutes are the routes of vLLM's sleep mode.
type sleepRoutes struct{ *life }

// fallAsleep answers POST /sleep: running requests are aborted, the caches are emptied, and new requests wait.
func (l sleepRoutes) fallAsleep(c *call) {
	level := 1
	if c.r.URL.Query().Get("level") == "2" {
		level = 2
	}
	l.sleep.set(level)
	for _, one := range l.cores {
		core.AbortAll(one)
		one.Reset()
		one.Pause(true)
	}
	c.send(http.StatusOK, "", nil)
}

// wakeUp answers POST /wake_up once the engine computes again.
func (l sleepRoutes) wakeUp(c *call) {
	if l.sleep.now() > 0 {
		select {
		case <-time.After(time.Duration(float64(wakeTime) / l.cfg.Core.Timing.Speed)):
		case <-c.r.Context().Done():
			return
		}
		l.sleep.set(0)
		for _, one := range l.cores {
			one.Pause(l.faults.get().Stall)
		}
	}
	c.send(http.StatusOK, "", nil)
}

func (l sleepRoutes) isSleeping(c *call) {
	c.reply(http.StatusOK, map[string]bool{"is_sleeping": l.sleep.now() > 0})
}

// series writes the sleep state's series.
func (s *slumber) series(x *exposition, ranks []core.Stats) {
	level := s.now()
	x.family("engine_sleep_state", "gauge", "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake.")
	for rank := range ranks {
		for i, state := range []string{"awake", "weights_offloaded", "discard_all"} {
			is := 0.0
			if i == level {
				is = 1
			}
			x.sample("engine_sleep_state", rank, fmt.Sprintf("sleep_state=%q,", state), is)
		}
	}
}
