package chooser_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// A long prompt waits for the first tokens that its rank is about to write, and requests with next to nothing to
// compute pass it meanwhile.
func TestALongPromptLetsOthersPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		f.know()
		quick := f.choose(f.request(1, 64))
		var long *chooser.Choice
		go func() { long = f.choose(f.request(2, 30000)) }()
		synctest.Wait()
		if long != nil || f.chooser.Waiting() != 1 {
			t.Fatal("the long prompt does not wait for the first token before it")
		}
		time.Sleep(20 * time.Millisecond)
		other := f.choose(f.request(3, 64))
		if held := other.Decision.Held; held != 0 {
			t.Errorf("a quick request waits for %s behind the long one", held)
		}
		time.Sleep(20 * time.Millisecond)
		quick.FirstToken()
		synctest.Wait()
		if long != nil {
			t.Fatal("one of two first tokens let it go")
		}
		other.FirstToken()
		synctest.Wait()
		if long == nil || long.Decision.Held != 40*time.Millisecond {
			t.Fatalf("after the last first token it still waits: %+v", long)
		}
		for _, c := range []*chooser.Choice{quick, other, long} {
			c.Release(done(decision.EndCompleted))
		}
		f.empty()
	})
}

// It waits no longer than a full step, whatever comes.
func TestALongPromptYieldsForAStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		f.know()
		stop := f.running(t.Context())
		never := f.choose(f.request(1, 64))
		long := f.choose(f.request(2, 30000))
		step := time.Duration(long.Decision.Pick().FullStep * float64(time.Second))
		if held := long.Decision.Held; held < step || held > step+100*time.Millisecond {
			t.Errorf("held for %s; a full step takes %s", held, step)
		}
		never.Release(done(decision.EndCompleted))
		long.Release(done(decision.EndCompleted))
		stop()
		f.empty()
	})
}

// Only long prompts yield, only where a first token is due, and only where a step's length is known.
func TestWhoDoesNotYield(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		f.know()
		long := f.choose(f.request(1, 30000))
		if held := long.Decision.Held; held != 0 {
			t.Errorf("on an idle rank a long prompt waits for %s", held)
		}
		long.FirstToken()
		second := f.choose(f.request(2, 30000))
		if held := second.Decision.Held; held != 0 {
			t.Errorf("with an answer that has begun a long prompt waits for %s", held)
		}
		second.FirstToken()
		for i := range 4 {
			c := f.choose(f.request(3+i, 64))
			if held := c.Decision.Held; held != 0 {
				t.Errorf("short prompt %d waits for %s", i, held)
			}
			defer c.Release(done(decision.EndCompleted))
		}
		long.Release(done(decision.EndCompleted))
		second.Release(done(decision.EndCompleted))

		guessed := newFleet(t, 1, nil)
		quick := guessed.choose(guessed.request(1, 64))
		long = guessed.choose(guessed.request(2, 30000))
		if held := long.Decision.Held; held != 0 {
			t.Errorf("on a rank of unknown speed a long prompt waits for %s", held)
		}
		quick.Release(done(decision.EndCompleted))
		long.Release(done(decision.EndCompleted))
	})
}
