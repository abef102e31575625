package router

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/observe/genai"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/sse"
)

// metrics counts requests. Attribute sets are made once: a request adds no garbage.
type metrics struct {
	histograms
	inFlight metric.Int64UpDownCounter
	tokens   metric.Int64Counter
	requests metric.Int64Counter
	genai    *genai.Metrics

	routes [routeCount]metric.MeasurementOption
	models perModel
}

// histograms has a request's times.
type histograms struct{ duration, ttft, perToken, overhead, held, encode metric.Float64Histogram }

func newMetrics(p metric.MeterProvider) (*metrics, error) {
	s := instruments.New(p, "server/route/router")
	m := &metrics{}
	var err error
	if m.genai, err = genai.New(p); err != nil {
		return nil, err
	}
	for route := range m.routes {
		m.routes[route] = instruments.Label("route", openai.Route(route).String())
	}
	slow := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	fast := []float64{.00005, .0001, .0002, .0005, .001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 5}
	m.inFlight = s.UpDownCounter(intake.MetricNS+"requests.in_flight", "{request}", "Requests in progress: read and not yet fully answered.")
	m.requests = s.CounterBy(intake.MetricNS+"requests", "{request}", "Ended requests by model (the first 200 served ones, or other), route, HTTP status and error reason.",
		m.models.of(otherModel).result(endLabels{route: openai.RouteChat, status: http.StatusOK}))
	m.duration = s.Histogram(intake.MetricNS+"request.duration", "s", "Time from a request's first byte to its answer's last, by model and route.", slow...)
	m.ttft = s.Histogram(intake.MetricNS+"ttft", "s", "Time from a request's first byte to the first content of its streamed answer, by model and route.", slow...)
	m.perToken = s.Histogram(intake.MetricNS+"time_per_output_token", "s", "Mean time between the output tokens of a streamed answer, by model, route and source, as the tokens.", .001, .0025, .005, .01, .02, .03, .05, .075, .1, .15, .25, .5, 1)
	m.overhead = s.Histogram(intake.MetricNS+"overhead", "s", "kvpilot's own time before a request left for its replica, without the waits for tokenizer and queue.", fast...)
	m.held = s.Histogram(intake.MetricNS+"held", "s", "Time in the hold queue.", fast...)
	m.encode = s.Histogram(intake.MetricNS+"tokenize", "s", "Time until the prompt's token ids were known or the attempt was abandoned.", fast...)
	m.tokens = s.CounterBy(intake.MetricNS+"tokens", "{token}", "Tokens by model, kind (prompt, cached, output; overlap: as predicted) and source: engine, or router (its own count, of streams without usage).")
	return m, nil
}

// notable is kvpilot's own time from which a trace is worth an exemplar.
const notable = time.Millisecond

// end counts one request. The engine's own statuses are few, so the label's values are too. With
// the request's context, an exemplar leads from a latency that a panel shows to its trace.
func (m *metrics) end(ctx context.Context, rq *intake.Request, d *attempt.Delivery, public *apierror.Error, took time.Duration) {
	route, model := m.routes[rq.Call.Route], m.models.of(modelLabel(rq))
	plain := context.Background() // makes no exemplar
	m.inFlight.Add(plain, -1)
	res := endLabels{route: rq.Call.Route, status: d.Status}
	if public != nil {
		res.status, res.reason = public.HTTPStatus(), public.Reason
	}
	m.requests.Add(plain, 1, model.result(res))
	if d.FirstToken.IsZero() { // else the first token's latency has it
		m.duration.Record(ctx, took.Seconds(), model.timed.routes[rq.Call.Route])
	} else {
		m.duration.Record(plain, took.Seconds(), model.timed.routes[rq.Call.Route])
	}
	if rq.Tokenizing > 0 {
		m.encode.Record(plain, rq.Tokenizing.Seconds(), route)
	}
	a := d.Attempt
	if a == nil {
		m.genai.Record(genaiOf(rq, d, res, sse.Usage{}, took))
		return
	}
	if a.Overhead > notable {
		m.overhead.Record(ctx, a.Overhead.Seconds(), route)
	} else {
		m.overhead.Record(plain, a.Overhead.Seconds(), route)
	}
	m.held.Record(plain, a.Held.Seconds(), route)
	m.tokens.Add(plain, int64(a.Choice.Held()), model.kinds[fromRouter][tokensOverlap])
	if !d.FirstToken.IsZero() {
		m.ttft.Record(ctx, d.FirstToken.Sub(rq.Received).Seconds(), model.timed.routes[rq.Call.Route])
	}
	u, source := costOf(rq, d)
	m.tokens.Add(plain, int64(max(0, u.PromptTokens)), model.kinds[source][tokensPrompt])
	m.tokens.Add(plain, int64(max(0, u.CachedTokens)), model.kinds[source][tokensCached])
	m.tokens.Add(plain, int64(max(0, u.CompletionTokens)), model.kinds[source][tokensOutput])
	if n := u.CompletionTokens; n > 1 && !d.FirstToken.IsZero() {
		m.perToken.Record(plain, time.Since(d.FirstToken).Seconds()/float64(n-1), model.timed.paces[source][rq.Call.Route])
	}
	m.genai.Record(genaiOf(rq, d, res, u, took))
}

// genaiOf is the request in the terms of OpenTelemetry's GenAI conventions, whether it reached a replica or not.
func genaiOf(rq *intake.Request, d *attempt.Delivery, res endLabels, u sse.Usage, took time.Duration) genai.Request {
	r := genai.Request{
		Operation: rq.Call.Route.Operation(), Duration: took,
		Input: max(0, u.PromptTokens), Output: max(0, u.CompletionTokens),
	}
	if modelLabel(rq) != otherModel {
		r.Model = rq.Pool.Model
	}
	if !d.FirstToken.IsZero() {
		r.FirstToken = d.FirstToken.Sub(rq.Received)
	}
	switch {
	case res.reason != apierror.Unspecified:
		r.ErrorType = apierror.Name(res.reason)
	case res.status >= http.StatusBadRequest:
		r.ErrorType = strconv.Itoa(res.status)
	}
	return r
}

// costOf is what the request has cost by the engine's usage, or, of a stream without it, by the router's own count.
func costOf(rq *intake.Request, d *attempt.Delivery) (u sse.Usage, source int) {
	if u, ok := d.Scan.Usage(); ok {
		return u, fromEngine
	}
	if n := d.Scan.ContentEvents(); n > 0 && !d.FirstToken.IsZero() {
		return sse.Usage{PromptTokens: d.Attempt.Choice.Decision.PromptTokens, CachedTokens: d.Attempt.CachedOwn(), CompletionTokens: rq.TokensIn(n)}, fromRouter
	}
	return sse.Usage{}, fromRouter
}

// decided counts a choice that was handed to the caller.
func (m *metrics) decided(rq *intake.Request, a *attempt.Attempt) {
	route := m.routes[rq.Call.Route]
	m.overhead.Record(context.Background(), a.Overhead.Seconds(), route)
	m.held.Record(context.Background(), a.Held.Seconds(), route)
	if rq.Tokenizing > 0 {
		m.encode.Record(context.Background(), rq.Tokenizing.Seconds(), route)
	}
}

// modelLabel is the request's model as the labels of metrics have it: the served model's name, whatever alias the client used.
func modelLabel(rq *intake.Request) string {
	if rq.Pool == nil || rq.Pool.Served == "" {
		return otherModel
	}
	return rq.Pool.Served
}
