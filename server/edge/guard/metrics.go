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
	madeRoom
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
	case madeRoom:
		return "made_room"
	case endings:
	}
	return "unknown"
}

type metrics struct {
	ended   metric.Int64Counter
	reasons [endings]metric.MeasurementOption
}

func newMetrics(provider metric.MeterProvider) *metrics {
	s := instruments.New(provider, "server/edge/guard")
	m := &metrics{}
	for e := range endings {
		m.reasons[e] = instruments.Label("reason", e.String())
	}
	m.ended = s.CounterBy("kvpilot.guard.ended_calls", "{call}", "gRPC calls rejected or ended by the bounds of memory and streams, by reason.", m.reasons[:]...)
	return m
}

func (m *metrics) count(e ending) { m.ended.Add(context.Background(), 1, m.reasons[e]) }
