package router

import (
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/kit/labels"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

const (
	// mostModels bounds the models with labels of their own, for fleets that load and unload adapters for years.
	mostModels = 200
	// mostTimed bounds those of them with histograms of their own, because a histogram takes up to twenty series; the others share
	// those of otherModel.
	mostTimed = 64
)

// routeCount is the number of routes.
const routeCount = int(openai.RouteOther) + 1

// perModel keeps the labels of each model's measurements. Its zero value is ready; it is safe for concurrent use.
type perModel struct {
	known sync.Map // string to *modelLabels
	count atomic.Int64
	timed atomic.Int64 // models with histograms of their own
}

// modelLabels are the labels of one model's measurements, made once.
type modelLabels struct {
	model   string
	timed   *modelLabels // those of its histograms: its own, or otherModel's
	routes  [routeCount]metric.MeasurementOption
	paces   [2][routeCount]metric.MeasurementOption // by source and route
	kinds   [2][4]metric.MeasurementOption          // by source and kind
	results labels.Sets[endLabels]
}

// endLabels is how a request ended, as the labels of metrics distinguish it.
type endLabels struct {
	route  openai.Route
	status int
	reason apierror.Reason
}

// of returns the labels of a model: a served one, or otherModel.
func (p *perModel) of(model string) *modelLabels {
	if known, ok := p.known.Load(model); ok {
		return known.(*modelLabels)
	}
	if p.count.Load() >= mostModels && model != otherModel {
		return p.of(otherModel)
	}
	fresh := newModelLabels(model)
	fresh.timed = fresh
	if model != otherModel && p.timed.Add(1) > mostTimed {
		p.timed.Add(-1)
		fresh.timed = p.of(otherModel)
	}
	known, had := p.known.LoadOrStore(model, fresh)
	switch {
	case !had:
		p.count.Add(1)
	case model != otherModel && fresh.timed == fresh:
		p.timed.Add(-1) // another request was faster
	}
	return known.(*modelLabels)
}

func newModelLabels(name string) *modelLabels {
	m := &modelLabels{model: name}
	model := attribute.String("model", name)
	for i := range m.routes {
		m.routes[i] = instruments.Labels(model, attribute.String("route", openai.Route(i).String()))
	}
	for source, by := range sources() {
		from := attribute.String("source", by)
		for i := range m.routes {
			m.paces[source][i] = instruments.Labels(model, attribute.String("route", openai.Route(i).String()), from)
		}
		for kind, of := range tokenKinds() {
			m.kinds[source][kind] = instruments.Labels(model, attribute.String("kind", of), from)
		}
	}
	return m
}

// result returns the labels of a request that ended so.
func (m *modelLabels) result(res endLabels) metric.MeasurementOption {
	return m.results.Of(res, func(res endLabels) []attribute.KeyValue {
		reason := ""
		if res.reason != apierror.Unspecified {
			reason = apierror.Name(res.reason)
		}
		return []attribute.KeyValue{
			attribute.String("model", m.model), attribute.String("route", res.route.String()), attribute.Int("status", res.status), attribute.String("reason", reason),
		}
	})
}

// The kinds of token that are counted.
const (
	tokensPrompt = iota
	tokensCached
	tokensOutput
	tokensOverlap
)

func tokenKinds() [4]string { return [4]string{"prompt", "cached", "output", "overlap"} }

// The sources of counts.
const (
	fromEngine = iota // its usage
	fromRouter        // of a stream without usage: the prompt as it was tokenized, the predicted overlap, the pieces
)

func sources() [2]string { return [2]string{"engine", "router"} }

// otherModel is the label of requests for no served model: clients invent names.
const otherModel = labels.Other
