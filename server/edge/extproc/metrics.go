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
	Streams   metric.Int64UpDownCounter `metric:"kvpilot.epp.streams" unit:"{stream}" help:"Requests of gateways in progress at the endpoint picker."`
	Questions instruments.Keyed[result] `metric:"kvpilot.epp.requests" unit:"{request}" by:"result" help:"Requests of gateways, by result: sent (to a replica), refused (with an error for the client), left (the gateway ended the stream first) or failed (it broke the protocol)."`
	Dropped   instruments.Keyed[string] `metric:"kvpilot.epp.dropped" unit:"{request}" by:"reason" help:"Requests that the endpoint picker refused for the fleet's state, by x-llm-d-request-dropped-reason."`
	Elsewhere metric.Int64Counter       `metric:"kvpilot.epp.served_elsewhere" unit:"{request}" help:"Requests that a gateway sent to another replica than the first; their bookings moved there."`
}

func newMetrics(provider metric.MeterProvider) *metrics {
	m := &metrics{}
	instruments.Declare(provider, "server/edge/extproc", m)
	m.Questions.Know(resultSent, resultRefused, resultLeft, resultFailed)
	m.Dropped.Know(droppedReasons()...)
	return m
}

func (m *metrics) open(n int64) { m.Streams.Add(context.Background(), n) }
