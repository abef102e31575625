package extproc

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/route/router"
)

// The life of a booking whose answer is not seen.
const (
	leastParting = time.Second
	mostParting  = 10 * time.Minute
)

// parting is a request whose answer is not seen to its end.
type parting struct {
	handoff *router.Handoff
	span    trace.Span
}

// end ends the request as one that was answered.
func (p *parting) end() {
	p.handoff.End(trace.ContextWithSpan(context.Background(), p.span), nil)
	p.span.End()
}

// ender is a request that ends by itself; *parting is one.
type ender interface{ end() }

// partings keep the bookings of answers that are not seen until their predicted end.
type partings struct {
	mu     sync.Mutex
	closed bool                  // guarded by mu
	open   map[ender]*time.Timer // guarded by mu
}

// add ends one when d has passed, or at close.
func (p *partings) add(d time.Duration, one ender) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		one.end()
		return
	}
	if p.open == nil {
		p.open = map[ender]*time.Timer{}
	}
	p.open[one] = time.AfterFunc(min(max(d, leastParting), mostParting), func() { p.over(one) })
}

// over ends one whose time has passed, unless close does.
func (p *partings) over(one ender) {
	p.mu.Lock()
	_, mine := p.open[one]
	delete(p.open, one)
	p.mu.Unlock()
	if mine {
		one.end()
	}
}

// close ends all.
func (p *partings) close() {
	p.mu.Lock()
	open := p.open
	p.open, p.closed = nil, true
	p.mu.Unlock()
	for one, timer := range open {
		timer.Stop()
		one.end()
	}
}
