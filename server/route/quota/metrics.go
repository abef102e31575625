package quota

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// metrics are read from the accounts at each collection: requests cost nothing for them.
type metrics struct {
	Admitted   metric.Int64ObservableCounter `metric:"kvpilot.tenant.requests" unit:"{request}" by:"tenant" help:"Requests that a tenant's limits admitted. Tenants with an entry in the settings, and the first 64 others, have a label of their own; the rest are \"other\"."`
	Refused    metric.Int64ObservableCounter `metric:"kvpilot.tenant.refusals" unit:"{request}" by:"tenant cause" help:"Requests rejected by a tenant's limits, by cause: requests, tokens, in_flight or reserved_tokens."`
	Tokens     metric.Int64ObservableCounter `metric:"kvpilot.tenant.tokens" unit:"{token}" by:"tenant" help:"Tokens charged to a tenant: as engines counted them, or as predicted where they did not."`
	Unbelieved metric.Int64ObservableCounter `metric:"kvpilot.tenant.tokens.unbelieved" unit:"{token}" by:"tenant" help:"Reported tokens beyond a request's prompt, answer and limit. They are not charged."`
	Unrefunded metric.Int64ObservableCounter `metric:"kvpilot.tenant.tokens.unrefunded" unit:"{token}" by:"tenant" help:"Tokens that external callers' reports claimed back beyond the allowed share (5 %). They stay charged."`
	Alone      metric.Int64ObservableCounter `metric:"kvpilot.tenant.grants.alone" unit:"{grant}" by:"tenant" help:"Grants from this router's share of a tenant's limits, because the account's owner did not answer."`
	InFlight   metric.Int64ObservableGauge   `metric:"kvpilot.tenant.requests.in_flight" unit:"{request}" by:"tenant" help:"A tenant's requests in flight, reservations among them."`
	Reserved   metric.Int64ObservableGauge   `metric:"kvpilot.tenant.tokens.reserved" unit:"{token}" by:"tenant" help:"Tokens booked by a tenant's reservations."`
	Left       metric.Int64ObservableGauge   `metric:"kvpilot.tenant.tokens.left" unit:"{token}" by:"tenant" help:"Tokens that a tenant may use now, at the router that owns its account; below zero when answers were longer than predicted."`
}

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

// observe has the accounts of l read.
func observe(p metric.MeterProvider, l *Limiter) {
	var m metrics
	instruments.Declare(p, "server/route/quota", &m).Observe(func(o metric.Observer) {
		for name, s := range l.shown() {
			tenant := attribute.String("tenant", name)
			label := metric.WithAttributes(tenant)
			o.ObserveInt64(m.Admitted, s.admitted, label)
			o.ObserveInt64(m.Tokens, int64(s.tokens), label)
			o.ObserveInt64(m.Unbelieved, int64(s.unbelieved), label)
			o.ObserveInt64(m.Unrefunded, int64(s.unrefunded), label)
			o.ObserveInt64(m.Alone, s.alone, label)
			o.ObserveInt64(m.InFlight, s.inFlight, label)
			o.ObserveInt64(m.Reserved, s.reserved, label)
			if s.limited {
				o.ObserveInt64(m.Left, int64(s.level), label)
			}
			for cause := range causes {
				o.ObserveInt64(m.Refused, s.refused[cause], metric.WithAttributes(tenant, attribute.String("cause", cause.String())))
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
