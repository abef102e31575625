package guard

import (
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
	Ended instruments.Keyed[ending] `metric:"kvpilot.guard.ended_calls" unit:"{call}" by:"reason" help:"gRPC calls rejected or ended by the bounds of memory and streams, by reason."`
}

func newMetrics(provider metric.MeterProvider) *metrics {
	m := &metrics{}
	instruments.Declare(provider, "server/edge/guard", m)
	for e := range endings {
		m.Ended.Know(e)
	}
	return m
}
