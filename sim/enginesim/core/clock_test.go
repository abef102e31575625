package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginesim/core"
)

// A machine that is held up between two steps makes up for a little, which shows as steps that end late, and
// loses the rest.
func TestTheClockTellsWhetherTheMachineKeptUp(t *testing.T) {
	for _, test := range []struct {
		name string
		held time.Duration // after the first step
		want core.Clock
	}{
		{"in time", 0, core.Clock{Steps: 3, Modelled: 38 * time.Millisecond}},
		{"made up for", 18 * time.Millisecond, core.Clock{Steps: 3, Modelled: 38 * time.Millisecond, Late: 8 * time.Millisecond, MostLate: 8 * time.Millisecond, LateSteps: 1}},
		{"lost", 50 * time.Millisecond, core.Clock{Steps: 3, Modelled: 38 * time.Millisecond, Lost: 50 * time.Millisecond}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := core.New(config(), func([]core.Event) { time.Sleep(test.held) })
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { c.Run(ctx); close(done) }()
				s := core.NewSequence(core.Params{Prompt: prompt(8, 1), Next: next, MaxTokens: 3})
				c.Submit(s)
				finish(t, s)
				if got := c.Stats().Clock; got != test.want {
					t.Errorf("%+v, want %+v", got, test.want)
				}
				stop()
				<-done
			})
		})
	}
}
