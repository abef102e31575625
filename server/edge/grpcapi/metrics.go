package grpcapi

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// metrics counts events that only the surface sees.
type metrics struct {
	panics, refused, elsewhere, released, homeless metric.Int64Counter
	unknownKey, notAllowed, brokenRules            metric.MeasurementOption
}

func newMetrics(provider metric.MeterProvider) *metrics {
	s := instruments.New(provider, "server/edge/grpcapi")
	m := &metrics{
		unknownKey: instruments.Label("reason", "unauthenticated"), notAllowed: instruments.Label("reason", "role"), brokenRules: instruments.Label("reason", "rules"),
		panics:    s.Counter("kvpilot.grpcapi.panics", "{call}", "Calls that panicked."),
		elsewhere: s.Counter("kvpilot.grpcapi.served_elsewhere", "{request}", "Requests served by another replica than the one chosen for the external caller."),
		homeless:  s.Counter("kvpilot.grpcapi.named_alone", "{call}", "Calls of ChooseReplica with a request_id that this router answered without the router that keeps the name: the same call elsewhere may book again."),
		released:  s.Counter("kvpilot.grpcapi.released_by_stream_end", "{reservation}", "Reservations that ended because the tracking stream they were bound to ended."),
	}
	m.refused = s.CounterBy("kvpilot.grpcapi.refused", "{call}", "Calls rejected before their handler ran, by reason.", m.unknownKey, m.notAllowed, m.brokenRules)
	return m
}
