package extproc

import (
	"context"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// result is the end of a gateway's question.
type result string

const (
	resultSent    result = "sent"    // the gateway was named a replica
	resultRefused result = "refused" // the gateway was given an error for its client
	resultLeft    result = "left"    // the gateway ended the stream before the answer
	resultFailed  result = "failed"  // the stream broke the protocol
)

type metrics struct {
	streams   metric.Int64UpDownCounter
	questions metric.Int64Counter
	dropped   metric.Int64Counter
	elsewhere metric.Int64Counter
}

func newMetrics(provider metric.MeterProvider) *metrics {
	s := instruments.New(provider, "server/edge/extproc")
	m := &metrics{
		streams: s.UpDownCounter("kvpilot.epp.streams", "{stream}", "Requests of gateways in progress at the endpoint picker."),
		questions: s.CounterBy("kvpilot.epp.requests", "{request}", "Requests of gateways, by result: sent (to a replica), refused (with an error for the client), left (the gateway ended the stream first) or failed (it broke the protocol).",
			instruments.Values("result", string(resultSent), string(resultRefused), string(resultLeft), string(resultFailed))...),
		dropped: s.CounterBy("kvpilot.epp.dropped", "{request}", "Requests that the endpoint picker refused for the fleet's state, by x-llm-d-request-dropped-reason.",
			instruments.Values("reason", droppedReasons()...)...),
		elsewhere: s.Counter("kvpilot.epp.served_elsewhere", "{request}", "Requests that a gateway sent to another replica than the first; their bookings moved there."),
	}
	m.open(0)
	return m
}

func (m *metrics) open(n int64) { m.streams.Add(context.Background(), n) }

func (m *metrics) count(r result) {
	m.questions.Add(context.Background(), 1, instruments.Label("result", string(r)))
}

func (m *metrics) drop(reason string) {
	m.dropped.Add(context.Background(), 1, instruments.Label("reason", reason))
}
