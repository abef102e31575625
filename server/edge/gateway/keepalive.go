package gateway

import (
	"net/http"
	"sync"
	"time"
)

// comment is the event that keeps a connection open. Readers of server-sent events skip it.
const comment = ": keep-alive\n\n"

// keepAlive writes a comment into a stream of events whenever the client got nothing for some time: while the request is held, while
// its prompt is computed and while a replica is silent. Proxies and balancers close connections that are idle. The first comment
// sends the head, with status 200; an error that follows is the last event of the stream.
type keepAlive struct {
	out   *answer
	every time.Duration
	timer *time.Timer

	// mu guards all of the answer, from await to stop.
	mu sync.Mutex
	// last is when the client got something, or the waiting began; guarded by mu.
	last time.Time
	// early is set when a comment sent the head, over when the handler has ended; both guarded by mu.
	early, over bool
}

// await begins the comments of an answer that is being waited for.
func (a *answer) await(every time.Duration) {
	if every <= 0 || a.alive != nil || a.status != 0 {
		return
	}
	k := &keepAlive{out: a, every: every, last: time.Now()}
	a.alive = k
	k.mu.Lock() // tick waits until timer is set
	k.timer = time.AfterFunc(every, k.tick)
	k.mu.Unlock()
}

// tick sends a comment if the client got nothing for as long as the setting allows, and comes again.
func (k *keepAlive) tick() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over || k.out.failed != nil {
		return
	}
	if left := k.every - time.Since(k.last); left > 0 {
		k.timer.Reset(left)
		return
	}
	if k.send() == nil {
		k.timer.Reset(k.every)
	}
}

// send writes a comment between two events. An error means that the client is gone.
func (k *keepAlive) send() error {
	out := k.out
	k.last = time.Now()
	if out.status == 0 {
		k.early = true
		out.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		out.start(http.StatusOK)
		out.metrics.Comments.Add(phaseWaiting)
		return out.write([]byte(comment))
	}
	if out.cut != cutEvents || len(out.endOfEvent()) > 0 { // another kind of answer, or inside an event
		return nil
	}
	out.metrics.Comments.Add(phaseStream)
	return out.write([]byte(comment))
}

// stop ends the comments, before the handler's goroutine uses the request without a lock. It is idempotent.
func (k *keepAlive) stop() {
	if k == nil {
		return
	}
	k.mu.Lock()
	k.over = true
	k.mu.Unlock()
	k.timer.Stop()
}

// lock keeps comments away from the client's connection until unlock; both are for requests with and without a keepAlive.
func (k *keepAlive) lock() {
	if k != nil {
		k.mu.Lock()
	}
}

func (k *keepAlive) unlock() {
	if k != nil {
		k.mu.Unlock()
	}
}

// takeEarly reports whether the head was sent early, once.
func (k *keepAlive) takeEarly() bool {
	if k == nil || !k.early {
		return false
	}
	k.early = false
	return true
}
