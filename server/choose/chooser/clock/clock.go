package clock

import (
	"time"

	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// Clock is the time of a chooser. Its scale, which the load estimate uses, is in nanoseconds since start.
type Clock struct {
	source scope.Clock
	start  time.Time
}

// New returns a clock whose scale begins now.
func New(source scope.Clock) *Clock { return &Clock{source: source, start: source.Now()} }

// Now is the present time.
func (k *Clock) Now() time.Time { return k.source.Now() }

// Since is t on the scale.
func (k *Clock) Since(t time.Time) int64 { return int64(t.Sub(k.start)) }

// Time is the time of a moment on the scale.
func (k *Clock) Time(at int64) time.Time { return k.start.Add(time.Duration(at)) }

// Passed is the present time on the chooser's scale.
func (k *Clock) Passed() time.Duration { return k.Now().Sub(k.start) }

// Duration is a number of seconds as a time.Duration.
func Duration(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
