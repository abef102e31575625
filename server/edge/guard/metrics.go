package guard

import (
	"context"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// ending is why a call was ended or rejected.
type ending int

const (
	refusedFull ending = iota
	slowSender
	stalledReader
	endings // how many there are
)

func (e ending) String() string {
	switch e {
	case refusedFull:
		return "bodies_full"
	case slowSender:
		return "slow_sender"
	case stalledReader:
		return "stalled_reader"
	case endings:
	}
	return "unknown"
}

type metrics struct {
	ended   metric.Int64Counter
	reasons [endings]metric.MeasurementOption
}

func newMetrics(provider metric.MeterProvider, b *Budget) *metrics {
	s := instruments.New(provider, "server/edge/guard")
	m := &metrics{}
	for e := range endings {
		m.reasons[e] = instruments.Label("reason", e.String())
	}
	m.ended = s.CounterBy("kvpilot.guard.ended_calls", "{call}", "gRPC calls that were rejected or ended to keep memory and streams within their bounds, by reason.", m.reasons[:]...)
	held := s.ObservedGauge("kvpilot.guard.body_bytes", "By", "Bytes of request bodies in memory, REST and gRPC together.")
	s.Observe(func(o metric.Observer) { o.ObserveInt64(held, b.held.Load()) })
	return m
}

func (m *metrics) count(e ending) { m.ended.Add(context.Background(), 1, m.reasons[e]) }
