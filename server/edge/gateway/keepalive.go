package gateway

import (
	"net/http"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

// comment is the event that keeps a connection open. Readers of server-sent events skip it.
const comment = ": keep-alive\n\n"

// keepAlive writes a comment into a stream of events whenever the client got nothing for some time: while the request is held, while
// its prompt is computed and while a replica is silent. Proxies and balancers close connections that are idle. The first comment
// sends the head, with status 200; an error that follows is the last event of the stream.
type keepAlive struct {
	rq    *request
	every time.Duration
	timer *time.Timer

	// mu guards the client's connection and all fields of rq that its writers use, from Await to stop.
	mu sync.Mutex
	// last is when the client got something, or the waiting began; guarded by mu.
	last time.Time
	// early is set when a comment sent the head, over when the handler has ended; both guarded by mu.
	early, over bool
}

// Await implements router.Awaiter.
func (a *answer) Await() {
	rq := (*request)(a)
	every := rq.config.SSEKeepAlive
	if every <= 0 || rq.alive != nil || rq.status != 0 {
		return
	}
	k := &keepAlive{rq: rq, every: every, last: time.Now()}
	rq.alive = k
	k.mu.Lock() // tick waits until timer is set
	k.timer = time.AfterFunc(every, k.tick)
	k.mu.Unlock()
}

// tick sends a comment if the client got nothing for as long as the setting allows, and comes again.
func (k *keepAlive) tick() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over || k.rq.failed != nil {
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
	rq := k.rq
	k.last = time.Now()
	if rq.status == 0 {
		k.early = true
		rq.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		rq.start(http.StatusOK)
		rq.g.metrics.alive(phaseWaiting)
		return rq.write([]byte(comment))
	}
	if !rq.events || len(rq.endOfEvent()) > 0 { // another kind of answer, or inside an event
		return nil
	}
	rq.g.metrics.alive(phaseStream)
	return rq.write([]byte(comment))
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

// beginLate begins an answer behind a head that was sent early. The answer must be what the head says.
func (k *keepAlive) beginLate(status int, header http.Header) error {
	k.early = false
	if status == http.StatusOK && isEvents(header.Get("Content-Type")) {
		return nil
	}
	k.rq.failLocked(apierror.New(apierror.UpstreamError, "the replica did not answer with a stream of events", nil))
	return errBegun
}
