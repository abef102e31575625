package decisionlog

import (
	"sync/atomic"
	"time"
)

// subscriptionQueue bounds the entries that a slow subscriber may owe.
const subscriptionQueue = 256

// Subscription receives decisions as they are made and again when they end.
type Subscription struct {
	log    *Log
	filter Filter
	queue  chan Entry
	lost   atomic.Uint64
}

// Subscribe begins a subscription; the caller must Close it.
func (l *Log) Subscribe(f Filter) *Subscription {
	s := &Subscription{log: l, filter: f, queue: make(chan Entry, subscriptionQueue)}
	l.mu.Lock()
	l.subs[s] = struct{}{}
	l.mu.Unlock()
	return s
}

// Entries is the queue to read from. It is never closed.
func (s *Subscription) Entries() <-chan Entry { return s.queue }

// Lost counts the entries that were dropped because the queue was full.
func (s *Subscription) Lost() uint64 { return s.lost.Load() }

// Close ends the subscription. It may be called again.
func (s *Subscription) Close() {
	s.log.mu.Lock()
	delete(s.log.subs, s)
	s.log.mu.Unlock()
}

// publish hands e to every subscriber without waiting; mu is held.
func (l *Log) publish(e Entry) {
	for s := range l.subs {
		if !s.filter.lets(e, time.Now()) {
			continue
		}
		select {
		case s.queue <- e:
		default:
			s.lost.Add(1)
			l.metrics.Drops.Add("subscriber")
		}
	}
}
