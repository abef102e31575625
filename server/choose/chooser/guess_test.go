package chooser_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Unstreamed answers that overlap show no first token. An engine several times as fast as the built-in guess was sent no more than the
// guess allowed, for ever, and finished a quarter of what it can.
func TestAGuessedSpeedDoesNotThrottleAFastEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			prompt  = 2000
			rate    = 40000 // tokens per second; the guess is 8,000
			decode  = 400 * time.Millisecond
			clients = 48
			during  = 20 * time.Second
		)
		f := newFleet(t, 1, nil)
		stop := f.running(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), during)
		defer cancel()
		engine := make(chan struct{}, 1) // prefills one prompt after the other
		var answered atomic.Int64
		var all sync.WaitGroup
		for client := range clients {
			all.Go(func() {
				for turn := 0; ; turn++ {
					req := f.request(client*1000+turn, prompt)
					req.Unstreamed = true
					c, err := f.chooser.Choose(ctx, req)
					if err != nil {
						return
					}
					engine <- struct{}{}
					time.Sleep(prompt * time.Second / rate)
					<-engine
					time.Sleep(decode)
					result := done(decision.EndCompleted)
					result.OutputTokens = 40
					c.Release(result)
					answered.Add(1)
				}
			})
		}
		all.Wait()
		able := int64(rate / prompt * during.Seconds())
		if n := answered.Load(); n < able*8/10 {
			t.Errorf("%d answers in %s of an engine that can give %d", n, during, able)
		}
		stop()
		f.empty()
	})
}

// A guess must not let everything through either: what waits here can still go elsewhere.
func TestAGuessedSpeedHoldsBackALot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var sent atomic.Int64
		for i := range 200 {
			all.Go(func() {
				if c, err := f.chooser.Choose(ctx, f.request(i, 2000)); err == nil {
					sent.Add(1)
					<-ctx.Done()
					c.Release(done(decision.EndCanceled))
				}
			})
		}
		synctest.Wait()
		if n := sent.Load(); n < 5 || n > 20 {
			t.Errorf("%d prompts of 2,000 tokens were sent at once, want about 3 s of prefill at the guessed speed", n)
		}
		cancel()
		all.Wait()
		f.empty()
	})
}
