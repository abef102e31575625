// Package genai measures requests with the metrics of OpenTelemetry's GenAI semantic conventions, so that dashboards built for
// any model server work for kvpilot: gen_ai.server.request.duration, gen_ai.server.time_to_first_token,
// gen_ai.server.time_per_output_token and gen_ai.client.token.usage (https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/;
// names, units, attributes and bucket boundaries are from there).
//
// kvpilot's own metrics (kvpilot.router.*) say more: routes, sources, exemplars. These say what every server says.
package genai

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/kit/labels"
)

type metrics struct {
	Duration metric.Float64Histogram `metric:"gen_ai.server.request.duration" unit:"s" bounds:"0.01 0.02 0.04 0.08 0.16 0.32 0.64 1.28 2.56 5.12 10.24 20.48 40.96 81.92" help:"Time from a request's first byte to the last byte of its answer."`
	TTFT     metric.Float64Histogram `metric:"gen_ai.server.time_to_first_token" unit:"s" bounds:"0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10" help:"Time from a request's first byte to the first content of its streamed answer, of successful requests."`
	PerToken metric.Float64Histogram `metric:"gen_ai.server.time_per_output_token" unit:"s" bounds:"0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5" help:"Mean time per output token after the first, of successful streamed requests."`
	Tokens   metric.Int64Histogram   `metric:"gen_ai.client.token.usage" unit:"{token}" bounds:"1 4 16 64 256 1024 4096 16384 65536 262144 1048576 4194304 16777216 67108864" help:"Input and output tokens of a request."`
}

// Metrics records ended requests. It is safe for concurrent use. Label sets are kept, so a record allocates only the SDK's copies of its
// options.
type Metrics struct {
	metrics metrics

	models   *labels.Names
	requests labels.Sets[requestLabels]
	usage    labels.Sets[usageLabels]
}

// mostModels bounds the models with series of their own, because each takes about ninety; the others share the series of labels.Other.
const mostModels = 64

// Request is an ended request, whether it reached a replica or not.
type Request struct {
	Operation string // gen_ai.operation.name: "chat", "text_completion", "embeddings" …; no text that a client can invent
	Model     string // gen_ai.request.model: a model that the fleet serves; empty if the request named none
	ErrorType string // error.type, of few values; empty for a successful request

	Duration   time.Duration // from the request's first byte to the answer's last
	FirstToken time.Duration // to the first content of a streamed answer; 0 if there was none
	Input      int           // prompt tokens; 0 if unknown
	Output     int           // generated tokens; 0 if unknown
}

type requestLabels struct{ operation, model, errorType string }

type usageLabels struct{ operation, model, kind string }

// New returns the instruments of provider; of nil, instruments that do nothing.
func New(provider metric.MeterProvider) *Metrics {
	m := &Metrics{models: labels.NewNames(mostModels)}
	instruments.Declare(provider, "server/observe/genai", &m.metrics)
	return m
}

// Record counts one request.
func (m *Metrics) Record(r Request) {
	ctx := context.Background() // exemplars are kvpilot.router's
	if r.Model != "" {
		r.Model = m.models.Of(r.Model)
	}
	ended := m.requests.Of(requestLabels{r.Operation, r.Model, r.ErrorType}, requestLabels.attributes)
	m.metrics.Duration.Record(ctx, r.Duration.Seconds(), ended)
	if r.ErrorType == "" && r.FirstToken > 0 {
		m.metrics.TTFT.Record(ctx, r.FirstToken.Seconds(), ended)
		if r.Output > 1 && r.Duration > r.FirstToken {
			m.metrics.PerToken.Record(ctx, (r.Duration-r.FirstToken).Seconds()/float64(r.Output-1), ended)
		}
	}
	m.recordUsage(ctx, r, "input", r.Input)
	m.recordUsage(ctx, r, "output", r.Output)
}

func (m *Metrics) recordUsage(ctx context.Context, r Request, kind string, n int) {
	if n > 0 {
		m.metrics.Tokens.Record(ctx, int64(n), m.usage.Of(usageLabels{r.Operation, r.Model, kind}, usageLabels.attributes))
	}
}

func (l requestLabels) attributes() []attribute.KeyValue {
	attrs := common(l.operation, l.model)
	if l.errorType != "" {
		attrs = append(attrs, attribute.String("error.type", l.errorType))
	}
	return attrs
}

func (l usageLabels) attributes() []attribute.KeyValue {
	return append(common(l.operation, l.model), attribute.String("gen_ai.token.type", l.kind))
}

func common(operation, model string) []attribute.KeyValue {
	attrs := []attribute.KeyValue{attribute.String("gen_ai.operation.name", operation), attribute.String("gen_ai.provider.name", "vllm")}
	if model != "" {
		attrs = append(attrs, attribute.String("gen_ai.request.model", model))
	}
	return attrs
}
