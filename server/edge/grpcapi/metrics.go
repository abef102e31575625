package grpcapi

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// metrics counts events that only the surface sees.
type metrics struct {
	Panics    metric.Int64Counter       `metric:"kvpilot.grpcapi.panics" unit:"{call}" help:"Calls that panicked."`
	Elsewhere metric.Int64Counter       `metric:"kvpilot.grpcapi.served_elsewhere" unit:"{request}" help:"Requests served by another replica than the one chosen for the external caller."`
	Homeless  metric.Int64Counter       `metric:"kvpilot.grpcapi.named_alone" unit:"{call}" help:"Calls of ChooseReplica with a request_id that this router answered without the router that keeps the name: the same call elsewhere may book again."`
	Released  metric.Int64Counter       `metric:"kvpilot.grpcapi.released_by_stream_end" unit:"{reservation}" help:"Reservations that ended because the tracking stream they were bound to ended."`
	Refused   instruments.Keyed[string] `metric:"kvpilot.grpcapi.refused" unit:"{call}" by:"reason" values:"unauthenticated role rules" help:"Calls rejected before their handler ran, by reason."`
}

func newMetrics(provider metric.MeterProvider) *metrics {
	m := &metrics{}
	instruments.Declare(provider, "server/edge/grpcapi", m)
	return m
}
