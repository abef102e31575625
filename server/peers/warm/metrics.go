package warm

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// outcome is how a pull ended.
type outcome uint8

const (
	outcomeOK outcome = iota
	outcomeIncomplete
	outcomeFailed
	outcomeBusy
	outcomes
)

var outcomeNames = [outcomes]string{"ok", "incomplete", "failed", "busy"}

type metrics struct {
	took   metric.Float64Histogram
	served metric.Int64Counter
	by     []metric.MeasurementOption
}

func newMetrics(provider metric.MeterProvider) *metrics {
	s := instruments.New(provider, "server/peers/warm")
	m := &metrics{by: instruments.Values("outcome", outcomeNames[:]...)}
	m.took = s.Histogram("kvpilot.peers.pull", "s", "Time to pull a peer's index, by outcome: ok, incomplete, failed.", .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60)
	m.served = s.CounterBy("kvpilot.peers.pulls_served", "{pull}", "Pulls of this router's index by peers, by outcome: ok, failed, busy.", m.by[outcomeOK], m.by[outcomeFailed], m.by[outcomeBusy])
	return m
}

func (m *metrics) pulled(how outcome, took time.Duration) {
	m.took.Record(context.Background(), took.Seconds(), m.by[how])
}

func (m *metrics) servedOne(how outcome) { m.served.Add(context.Background(), 1, m.by[how]) }
