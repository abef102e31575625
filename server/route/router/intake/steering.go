package intake

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// steering counts what was dropped.
type steering struct {
	Dropped instruments.Keyed[steered] `metric:"kvpilot.router.steering.dropped" unit:"{word}" by:"word" help:"Dropped values for engines' KV connectors from callers without the role steer, by word: kv_transfer_params, ec_transfer_params, request_id (one with a connector's addresses in it)."`
}

// steered is a word that was dropped.
type steered openai.Steering

// String is the form that metrics use.
func (s steered) String() string { return openai.Steering(s).Names()[0] }

func newSteering(provider metric.MeterProvider) *steering {
	m := &steering{}
	instruments.Declare(provider, "server/route/router", m)
	for _, one := range openai.Steerings() {
		m.Dropped.Know(steered(one))
	}
	return m
}

// addAll counts each word of a set.
func (m *steering) addAll(found openai.Steering) {
	for _, one := range openai.Steerings() {
		if found&one != 0 {
			m.Dropped.Add(steered(one))
		}
	}
}
