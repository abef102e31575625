package quota

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

const ns = "kvpilot.tenant."

// shown is what metrics show under one label.
type shown struct {
	counts
	inFlight, reserved int64
	level              float64
	limited            bool
}

func (c *counts) add(o *counts) {
	c.admitted += o.admitted
	c.tokens += o.tokens
	c.unbelieved += o.unbelieved
	c.unrefunded += o.unrefunded
	c.alone += o.alone
	for i := range c.refused {
		c.refused[i] += o.refused[i]
	}
}

// owned reports whether the account is this router's. mu is held.
func (t *tenant) owned() bool { return t.part == nil || t.part.owner == "" }

// meter registers the instruments. Requests cost nothing for them: they read the accounts.
func (l *Limiter) meter(p metric.MeterProvider) {
	s := instruments.New(p, "server/route/quota")
	admitted := s.ObservedCounter(ns+"requests", "{request}", "Requests that a tenant's limits admitted. Tenants with an entry in the settings, and the first 64 others, have a label of their own; the rest are \"other\".")
	refused := s.ObservedCounter(ns+"refusals", "{request}", "Requests rejected by a tenant's limits, by cause: requests, tokens, in_flight or reserved_tokens.")
	tokens := s.ObservedCounter(ns+"tokens", "{token}", "Tokens charged to a tenant: as engines counted them, or as predicted where they did not.")
	unbelieved := s.ObservedCounter(ns+"tokens.unbelieved", "{token}", "Reported tokens beyond a request's prompt, answer and limit. They are not charged.")
	unrefunded := s.ObservedCounter(ns+"tokens.unrefunded", "{token}", "Tokens that external callers' reports claimed back beyond the allowed share (5 %). They stay charged.")
	alone := s.ObservedCounter(ns+"grants.alone", "{grant}", "Grants from this router's share of a tenant's limits, because the account's owner did not answer.")
	inFlight := s.ObservedGauge(ns+"requests.in_flight", "{request}", "A tenant's requests in flight, reservations among them.")
	reserved := s.ObservedGauge(ns+"tokens.reserved", "{token}", "Tokens booked by a tenant's reservations.")
	left := s.ObservedGauge(ns+"tokens.left", "{token}", "Tokens that a tenant may use now, at the router that owns its account; below zero when answers were longer than predicted.")
	s.Observe(func(o metric.Observer) {
		for name, s := range l.shown() {
			tenant := attribute.String("tenant", name)
			label := metric.WithAttributes(tenant)
			o.ObserveInt64(admitted, s.admitted, label)
			o.ObserveInt64(tokens, int64(s.tokens), label)
			o.ObserveInt64(unbelieved, int64(s.unbelieved), label)
			o.ObserveInt64(unrefunded, int64(s.unrefunded), label)
			o.ObserveInt64(alone, s.alone, label)
			o.ObserveInt64(inFlight, s.inFlight, label)
			o.ObserveInt64(reserved, s.reserved, label)
			if s.limited {
				o.ObserveInt64(left, int64(s.level), label)
			}
			for cause := range causes {
				o.ObserveInt64(refused, s.refused[cause], metric.WithAttributes(tenant, attribute.String("cause", cause.String())))
			}
		}
	})
}

// shown sums the accounts up by label.
func (l *Limiter) shown() map[string]*shown {
	l.mu.RLock()
	defer l.mu.RUnlock()
	now := time.Now()
	by := map[string]*shown{}
	of := func(label string) *shown {
		s := by[label]
		if s == nil {
			s = &shown{}
			by[label] = s
		}
		return s
	}
	add := func(t *tenant) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.fill(now)
		s := of(t.label)
		s.add(&t.counted)
		s.inFlight += int64(t.inFlight)
		s.reserved += int64(t.reserved)
		if t.tokens.limits() {
			s.limited = true
			if t.owned() {
				s.level += t.tokens.level
			}
		}
	}
	for _, t := range l.tenants {
		add(t)
	}
	if l.others != nil {
		add(l.others)
	}
	if l.gone.admitted > 0 {
		of(others).add(&l.gone)
	}
	return by
}
