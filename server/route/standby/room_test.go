package standby_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/standby"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// empty is a registry without replicas.
type empty struct{ view *registry.Snapshot }

func (e empty) Snapshot() *registry.Snapshot { return e.view }
func (empty) Refresh(replica.ID)             {}

func room(change func(*standby.Config)) *standby.Room {
	c := standby.DefaultConfig()
	c.Models = []string{"m"}
	if change != nil {
		change(&c)
	}
	return standby.New(c, standby.Params{Registry: empty{registry.New(registry.DefaultConfig(), registry.Params{}).Snapshot()}})
}

func nothing() {}

func TestOnlyModelsOfTheSettingsAreHeld(t *testing.T) {
	if _, err := room(nil).Wait(t.Context(), "other", 1, func() { t.Error("another model is held") }); err != nil {
		t.Error(err)
	}
	var no *standby.Room
	if _, err := no.Wait(t.Context(), "m", 1, nothing); err != nil || no.HoldsAny() || no.Waiting("m") != 0 {
		t.Errorf("without a room: %v", err)
	}
}

func TestAWaitEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := room(func(c *standby.Config) { c.MaxWait = time.Minute })
		began := false
		took, err := r.Wait(t.Context(), "m", 1, func() { began = true })
		if !errors.Is(err, standby.ErrTimeout) || took != time.Minute || !began || r.Waiting("m") != 0 {
			t.Errorf("after %v: %v, begun %v", took, err, began)
		}
	})
}

func TestAWaitEndsWithItsCallerAndWithTheRouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := room(nil)
		gone := errors.New("gone")
		ctx, leave := context.WithCancelCause(t.Context())
		go func() {
			time.Sleep(time.Second)
			leave(gone)
		}()
		if took, err := r.Wait(ctx, "m", 1, nothing); !errors.Is(err, gone) || took != time.Second {
			t.Errorf("after %v: %v", took, err)
		}
		go func() {
			time.Sleep(time.Second)
			r.Close()
			r.Close()
		}()
		if took, err := r.Wait(t.Context(), "m", 1, nothing); !errors.Is(err, standby.ErrClosed) || took != time.Second {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

func TestRequestsThatWaitAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := room(func(c *standby.Config) { c.MaxRequests, c.MaxBytes = 3, 100 })
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() { _, _ = r.Wait(t.Context(), "m", 40, nothing) })
		}
		synctest.Wait()
		if _, err := r.Wait(t.Context(), "m", 30, nothing); !errors.Is(err, standby.ErrFull) {
			t.Errorf("more bytes than fit: %v", err)
		}
		all.Go(func() { _, _ = r.Wait(t.Context(), "m", 1, nothing) })
		synctest.Wait()
		if _, err := r.Wait(t.Context(), "m", 1, nothing); !errors.Is(err, standby.ErrFull) || r.Waiting("m") != 3 {
			t.Errorf("more requests than fit: %v, %d wait", err, r.Waiting("m"))
		}
		r.Close()
		all.Wait()
		if n := r.Waiting("m"); n != 0 {
			t.Errorf("%d wait after the end", n)
		}
	})
}

func TestSettingsNameEachMistake(t *testing.T) {
	err := standby.Config{Models: []string{""}, Utilization: 2}.Validate().Error()
	for _, want := range []string{"max_wait: must be positive", "utilization: must be from 0.05 to 1", "models: a name must not be empty", "max_requests", "max_bytes"} {
		if !strings.Contains(err, want) {
			t.Errorf("%q is missing in:\n%s", want, err)
		}
	}
	if err := standby.DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
}
