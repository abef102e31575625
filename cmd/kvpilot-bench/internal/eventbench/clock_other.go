//go:build !unix

package eventbench

import (
	"context"
	"time"
)

// cpuTime is not known here.
func cpuTime() time.Duration { return 0 }

type sleeper struct{}

func watchSleep(context.Context) *sleeper { return &sleeper{} }

func (*sleeper) stop() []time.Duration { return nil }
