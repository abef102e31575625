package attempt

import (
	"context"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// lookEvery is how often the vigil looks for the replica that computed the prompt.
const lookEvery = 500 * time.Millisecond

// lingerFor bounds how long a leg outlives its client.
const lingerFor = 5 * time.Second

// watcher stops attempts that wait in vain for a cache.
type watcher struct {
	legTiming
	registry *registry.Registry
}

// watch stops the attempt when the answer takes too long, or cannot come because the replica that computed the prompt is gone.
func (w *watcher) watch(rq *intake.Request, a *Attempt) {
	c := a.cache
	expected := a.Choice.PredictedMove().Seconds()
	bounded := true
	if !rq.Parsed.Stream { // its first byte comes after its last token
		var answer float64
		answer, bounded = longestAnswer(rq, a)
		expected += answer
	}
	deadline := make(<-chan time.Time)
	if bounded {
		timer := time.NewTimer(w.limit(expected))
		defer timer.Stop()
		deadline = timer.C
	}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-c.vigil.over:
			return
		case <-deadline:
			c.vigil.close()
			a.stop(chooser.Stalled)
			return
		case <-look.C:
		}
		if !w.isGone(c.lead.Replica.ID) {
			continue
		}
		// An answer in one piece does not show whether the cache was read before: it gets the time that it would need.
		if rest := time.Until(c.sent.Add(time.Duration(legTimes * expected * float64(time.Second)))); !rq.Parsed.Stream && rest > 0 && bounded {
			timer := time.NewTimer(rest)
			defer timer.Stop()
			select {
			case <-c.vigil.over:
				return
			case <-timer.C:
			}
		}
		c.vigil.close()
		a.orphan()
		return
	}
}

// isGone reports whether a replica cannot pass a cache on.
func (w *watcher) isGone(id replica.ID) bool {
	r, ok := w.registry.Snapshot().Replica(id)
	return !ok || r.State == replica.StateUnhealthy || r.State == replica.StateStarting
}

// longestAnswer is the predicted time in seconds of the longest answer that the request allows; false when it is not known.
func longestAnswer(rq *intake.Request, a *Attempt) (seconds float64, known bool) {
	pick := a.Choice.Decision.Pick()
	if pick == nil || pick.TPOT <= 0 {
		return 0, false
	}
	tokens := rq.Parsed.MaxTokens
	if tokens <= 0 {
		m, _ := a.Choice.Replica.Serves(rq.Pool.Served)
		tokens = m.MaxLen - a.Choice.Decision.PromptTokens
	}
	return pick.TPOT * float64(tokens), tokens > 0
}

// linger returns the context of a leg to an engine that keeps the blocks of a request for good whose client leaves while it waits for
// the cache (NixlPushConnector of vLLM 0.33): ctx is the client's. The leg outlives the client until the cache was read.
func (c *cache) linger(ctx, actx context.Context) context.Context {
	lctx, cancel := context.WithCancel(context.WithoutCancel(actx))
	context.AfterFunc(actx, func() {
		if ctx.Err() != nil {
			timer := time.NewTimer(lingerFor)
			defer timer.Stop()
			select {
			case <-c.vigil.over:
			case <-timer.C:
			}
		}
		cancel()
	})
	return lctx
}

// legTiming has the times that legs go by.
type legTiming struct{ Patience, Lease time.Duration }

// limit is how long a leg that is predicted to take so many seconds may take.
func (t legTiming) limit(seconds float64) time.Duration {
	return t.Patience + time.Duration(legTimes*seconds*float64(time.Second))
}

const (
	// maxPrefilled bounds the answer of a replica that prefills: the names of the blocks of a long prompt.
	maxPrefilled = 64 << 20
	// blockLease is how long vLLM keeps blocks that nothing reads (kv_lease_duration).
	blockLease = 30 * time.Second
	// mooncakeLeases is how many times as long Mooncake keeps them (VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT).
	mooncakeLeases = 16
	// legPatience and legTimes bound a leg: a fixed time, and a multiple of the predicted one, which may be a guess.
	legPatience = 30 * time.Second
	legTimes    = 4
)

// vigil watches the leg of a split request that decodes, until an answer shows that the cache was read. An engine may wait for a cache for
// good: when the replica that computed it has died, or when nothing was written.
type vigil struct {
	// over is closed when the cache was read, or when the leg has ended.
	over   chan struct{}
	closed sync.Once
}

func newVigil() *vigil { return &vigil{over: make(chan struct{})} }

// close ends the vigil. It is idempotent.
func (v *vigil) close() { v.closed.Do(func() { close(v.over) }) }
