package router

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

const (
	// headerDropped names the members of the client's request that did not go to the engine.
	headerDropped    = "X-Kvpilot-Dropped"
	headerRetryAfter = "Retry-After"
)

// unsteered is the request without what steers an engine's KV connector. Its body is read again: everything that is
// learned of it is learned of what the engine gets.
func (in *intake) unsteered(rq *request, req *openai.Request, params openai.Params) (*openai.Request, error) {
	body, found := req.WithoutSteering()
	if found == 0 {
		return req, nil
	}
	rq.dropped |= found
	in.steering.addAll(found)
	params.Body = body
	return in.bodies.Read(params)
}

// engineID is the request id that the engine gets: the client's, or the router's own instead of one with a connector's
// addresses in it.
func (rq *request) engineID() string {
	if rq.call.Steers || !openai.MarksAddress(rq.call.RequestID) {
		return rq.call.RequestID
	}
	return rq.id
}

// idAt is the request id that an attempt's engine gets.
func idAt(rq *request, a *attempt) string {
	if a.cache != nil {
		return legID(rq, a, "d")
	}
	return rq.engineID()
}

// checkID notes that the engine gets another request id than the client's.
func (in *intake) checkID(rq *request) {
	if id := rq.engineID(); id != rq.call.RequestID {
		rq.dropped |= openai.SteersID
		in.steering.addAll(openai.SteersID)
	}
}

// steering counts what was dropped.
type steering struct {
	instruments.Keyed[openai.Steering]
}

func newSteering(s *instruments.Set) steering {
	return steering{instruments.NewKeyed(s, ns+"steering.dropped", "{word}", "What requests of callers without the role steer said to engines' KV connectors and was dropped, by word: kv_transfer_params, ec_transfer_params, request_id (one with a connector's addresses in it).",
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
