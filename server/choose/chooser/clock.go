package chooser

import (
	"time"

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

func duration(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
