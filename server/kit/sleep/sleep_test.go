package sleep_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/sleep"
)

func TestForWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !sleep.For(t.Context(), time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("it waited for %v, want a minute", time.Since(began))
		}
	})
}

func TestAnEndedContextCutsItShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if sleep.For(ctx, time.Minute) || time.Since(began) != time.Second {
			t.Errorf("it waited for %v and not for the context's second", time.Since(began))
		}
		if sleep.For(ctx, 0) {
			t.Error("a context that has ended passes for one that lives")
		}
	})
}

func TestNothingToWaitFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !sleep.For(t.Context(), -time.Second) || time.Since(began) != 0 {
			t.Errorf("it waited for %v", time.Since(began))
		}
	})
}
