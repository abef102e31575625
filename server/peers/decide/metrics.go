package decide

import (
	"context"
	"time"

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

type metrics struct {
	Asks     instruments.Keyed[string]   `metric:"kvpilot.peers.asks" unit:"{question}" by:"outcome" help:"Questions to deciders, by outcome."`
	Alone    instruments.Keyed[string]   `metric:"kvpilot.peers.alone" unit:"{decision}" by:"reason" help:"Decisions that this router made instead of the pool's decider, by reason."`
	Handed   metric.Int64Counter         `metric:"kvpilot.peers.handed_over" unit:"{booking}" help:"Requests in flight that a decider did not know."`
	Resyncs  metric.Int64Counter         `metric:"kvpilot.peers.resyncs" unit:"{list}" help:"Lists of all bookings that a decider asked for, because its own differed."`
	Voids    metric.Int64Counter         `metric:"kvpilot.peers.void_decisions" unit:"{decision}" help:"Decisions that were not used, because the question had moved to another router."`
	Took     metric.Float64Histogram     `metric:"kvpilot.peers.ask.duration" unit:"s" bounds:"0.0001 0.0002 0.0005 0.001 0.002 0.005 0.01 0.02 0.05 0.1" help:"Time from a question to its answer, without the time in the hold queue."`
	Waiting  metric.Int64ObservableGauge `metric:"kvpilot.peers.questions" unit:"{question}" help:"Questions of this router that wait for a decider."`
	Live     metric.Int64ObservableGauge `metric:"kvpilot.peers.bookings" unit:"{booking}" help:"Requests in flight of this router."`
	Deciders metric.Int64ObservableGauge `metric:"kvpilot.peers.decider" unit:"{router}" by:"pool" help:"1 for each pool that this router decides for, 0 for the others."`
}

func newMetrics(provider metric.MeterProvider, f *Frontend) *metrics {
	m := &metrics{}
	s := instruments.Declare(provider, "server/peers/decide", m)
	m.Asks.Know(outcomeChosen, outcomeRefused, outcomeSilent)
	m.Alone.Know(aloneSilent, aloneUnknown, aloneNoReplica, aloneMoved)
	s.Observe(func(o metric.Observer) {
		f.mu.Lock()
		defer f.mu.Unlock()
		o.ObserveInt64(m.Waiting, int64(len(f.asks)))
		o.ObserveInt64(m.Live, int64(len(f.live)))
		for pool, id := range f.placed {
			n := int64(0)
			if id == f.params.Self {
				n = 1
			}
			o.ObserveInt64(m.Deciders, n, instruments.Label("pool", pool))
		}
	})
	return m
}

func (m *metrics) answered(outcome string, took time.Duration) {
	m.Asks.Add(outcome)
	m.Took.Record(context.Background(), took.Seconds())
}

func (m *metrics) handedOver(n int) { m.Handed.Add(context.Background(), int64(n)) }
func (m *metrics) resynced()        { m.Resyncs.Add(context.Background(), 1) }
func (m *metrics) voided()          { m.Voids.Add(context.Background(), 1) }

type deciderMetrics struct {
	Answers instruments.Keyed[string]   `metric:"kvpilot.peers.answers" unit:"{question}" by:"outcome" help:"Questions of peers that this router decided, by outcome."`
	Adopts  metric.Int64Counter         `metric:"kvpilot.peers.adopted" unit:"{booking}" help:"Requests in flight of peers that this router adopted."`
	Held    metric.Int64ObservableGauge `metric:"kvpilot.peers.foreign_bookings" unit:"{booking}" help:"Requests in flight of peers that this router knows."`
}

func newDeciderMetrics(provider metric.MeterProvider, d *Decider) *deciderMetrics {
	m := &deciderMetrics{}
	s := instruments.Declare(provider, "server/peers/decide", m)
	m.Answers.Know(outcomeChosen, outcomeRefused)
	s.Observe(func(o metric.Observer) {
		d.mu.Lock()
		defer d.mu.Unlock()
		n := 0
		for _, c := range d.clients {
			n += len(c.booked)
		}
		o.ObserveInt64(m.Held, int64(n))
	})
	return m
}

func (m *deciderMetrics) adopted() { m.Adopts.Add(context.Background(), 1) }
