package decide

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// The outcomes of a question.
const (
	outcomeChosen  = "chosen"
	outcomeRefused = "refused"
	outcomeSilent  = "silent"
)

// Why a router decides alone.
const (
	// aloneSilent: the decider left the question without any answer for Config.Patience.
	aloneSilent = "silent"
	// aloneUnknown: the decider chose a rank that is not known here.
	aloneUnknown = "unknown_rank"
	// aloneNoReplica: the decider knows no replica that can serve.
	aloneNoReplica = "no_replica"
	// aloneMoved: deciders kept changing.
	aloneMoved = "moved"
)

const instrumented = "server/peers/decide"

type metrics struct {
	asks    metric.Int64Counter
	alone   metric.Int64Counter
	handed  metric.Int64Counter
	resyncs metric.Int64Counter
	voids   metric.Int64Counter
	took    metric.Float64Histogram
	labels  map[string]metric.MeasurementOption
}

func newMetrics(provider metric.MeterProvider, f *Frontend) *metrics {
	s := instruments.New(provider, instrumented)
	m := &metrics{labels: map[string]metric.MeasurementOption{}}
	by := func(key string, values ...string) (all []metric.MeasurementOption) {
		for _, v := range values {
			o := metric.WithAttributeSet(attribute.NewSet(attribute.String(key, v)))
			m.labels[key+v] = o
			all = append(all, o)
		}
		return all
	}
	m.asks = s.CounterBy("kvpilot.peers.asks", "{question}", "Questions to deciders, by outcome.", by("outcome", outcomeChosen, outcomeRefused, outcomeSilent)...)
	m.alone = s.CounterBy("kvpilot.peers.alone", "{decision}", "Decisions that this router made instead of the pool's decider, by reason.",
		by("reason", aloneSilent, aloneUnknown, aloneNoReplica, aloneMoved)...)
	m.handed = s.Counter("kvpilot.peers.handed_over", "{booking}", "Requests in flight that a decider did not know.")
	m.resyncs = s.Counter("kvpilot.peers.resyncs", "{list}", "Lists of all bookings that a decider asked for, because its own differed.")
	m.voids = s.Counter("kvpilot.peers.void_decisions", "{decision}", "Decisions that were not used, because the question had moved to another router.")
	m.took = s.Histogram("kvpilot.peers.ask.duration", "s", "Time from a question to its answer, without the time in the hold queue.",
		0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
	waiting := s.ObservedGauge("kvpilot.peers.questions", "{question}", "Questions of this router that wait for a decider.")
	live := s.ObservedGauge("kvpilot.peers.bookings", "{booking}", "Requests in flight of this router.")
	deciders := s.ObservedGauge("kvpilot.peers.decider", "{router}", "1 for each pool that this router decides for, 0 for the others.")
	s.Observe(func(o metric.Observer) {
		f.mu.Lock()
		defer f.mu.Unlock()
		o.ObserveInt64(waiting, int64(len(f.asks)))
		o.ObserveInt64(live, int64(len(f.live)))
		for pool, id := range f.placed {
			n := int64(0)
			if id == f.params.Self {
				n = 1
			}
			o.ObserveInt64(deciders, n, metric.WithAttributes(attribute.String("pool", pool)))
		}
	})
	return m
}

func (m *metrics) answered(outcome string, took time.Duration) {
	m.asks.Add(context.Background(), 1, m.labels["outcome"+outcome])
	m.took.Record(context.Background(), took.Seconds())
}

func (m *metrics) decidedAlone(reason string) {
	m.alone.Add(context.Background(), 1, m.labels["reason"+reason])
}

func (m *metrics) handedOver(n int) { m.handed.Add(context.Background(), int64(n)) }
func (m *metrics) resynced()        { m.resyncs.Add(context.Background(), 1) }
func (m *metrics) voided()          { m.voids.Add(context.Background(), 1) }

type deciderMetrics struct {
	answers metric.Int64Counter
	adopts  metric.Int64Counter
	labels  map[string]metric.MeasurementOption
}

func newDeciderMetrics(provider metric.MeterProvider, d *Decider) *deciderMetrics {
	s := instruments.New(provider, instrumented)
	m := &deciderMetrics{labels: map[string]metric.MeasurementOption{}}
	var all []metric.MeasurementOption
	for _, v := range []string{outcomeChosen, outcomeRefused} {
		m.labels[v] = metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", v)))
		all = append(all, m.labels[v])
	}
	m.answers = s.CounterBy("kvpilot.peers.answers", "{question}", "Questions of peers that this router decided, by outcome.", all...)
	m.adopts = s.Counter("kvpilot.peers.adopted", "{booking}", "Requests in flight of peers that this router adopted.")
	held := s.ObservedGauge("kvpilot.peers.foreign_bookings", "{booking}", "Requests in flight of peers that this router knows.")
	s.Observe(func(o metric.Observer) {
		d.mu.Lock()
		defer d.mu.Unlock()
		n := 0
		for _, c := range d.clients {
			n += len(c.booked)
		}
		o.ObserveInt64(held, int64(n))
	})
	return m
}

func (m *deciderMetrics) decided(outcome string) {
	m.answers.Add(context.Background(), 1, m.labels[outcome])
}
func (m *deciderMetrics) adopted() { m.adopts.Add(context.Background(), 1) }
