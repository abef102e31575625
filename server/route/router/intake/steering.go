package intake

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// steering counts what was dropped.
type steering struct {
	instruments.Keyed[openai.Steering]
}

func newSteering(s *instruments.Set) *steering {
	return &steering{instruments.NewKeyed(s, MetricNS+"steering.dropped", "{word}", "Dropped values for engines' KV connectors from callers without the role steer, by word: kv_transfer_params, ec_transfer_params, request_id (one with a connector's addresses in it).",
		openai.Steerings(), func(one openai.Steering) metric.MeasurementOption { return instruments.Label("word", one.Names()[0]) })}
}

// addAll counts each word of a set.
func (m *steering) addAll(found openai.Steering) {
	for _, one := range openai.Steerings() {
		if found&one != 0 {
			m.Add(one)
		}
	}
}
