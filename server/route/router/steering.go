package router

import (
	"context"

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
func (r *Router) unsteered(rq *request, req *openai.Request, params openai.Params) (*openai.Request, error) {
	body, found := req.WithoutSteering()
	if found == 0 {
		return req, nil
	}
	rq.dropped |= found
	r.metrics.steering.add(found)
	params.Body = body
	return r.Bodies.Read(params)
}

// engineID is the request id that the engine gets: the client's, or the router's own instead of one with a connector's
// addresses in it.
func (rq *request) engineID() string {
	if rq.call.Steers || !openai.MarksAddress(rq.call.RequestID) {
		return rq.call.RequestID
	}
	return rq.id
}

// checkID notes that the engine gets another request id than the client's.
func (r *Router) checkID(rq *request) {
	if id := rq.engineID(); id != rq.call.RequestID {
		rq.dropped |= openai.SteersID
		r.metrics.steering.add(openai.SteersID)
	}
}

// steering counts what was dropped.
type steering struct {
	counter metric.Int64Counter
	labels  map[openai.Steering]metric.MeasurementOption
}

func newSteering(s *instruments.Set) steering {
	m := steering{labels: map[openai.Steering]metric.MeasurementOption{}}
	var all []metric.MeasurementOption
	for _, one := range openai.Steerings() {
		m.labels[one] = instruments.Label("word", one.Names()[0])
		all = append(all, m.labels[one])
	}
	m.counter = s.CounterBy(ns+"steering.dropped", "{word}", "What requests of callers without the role steer said to engines' KV connectors and was dropped, by word: kv_transfer_params, ec_transfer_params, request_id (one with a connector's addresses in it).", all...)
	return m
}

func (m *steering) add(found openai.Steering) {
	for _, one := range openai.Steerings() {
		if found&one != 0 {
			m.counter.Add(context.Background(), 1, m.labels[one])
		}
	}
}
