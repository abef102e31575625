// Package genai measures requests with the metrics of OpenTelemetry's GenAI semantic conventions, so that dashboards built for
// any model server work for kvpilot: gen_ai.server.request.duration, gen_ai.server.time_to_first_token,
// gen_ai.server.time_per_output_token and gen_ai.client.token.usage (https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/;
// names, units, attributes and bucket boundaries are from there).
//
// kvpilot's own metrics (kvpilot.router.*) say more: routes, sources, exemplars. These say what every server says.
package genai

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/kvpilot/kvpilot/server/kit/labels"
)

// Metrics records ended requests. It is safe for concurrent use. Label sets are kept, so a record allocates only the SDK's copies of its
// options.
type Metrics struct {
	duration metric.Float64Histogram
	ttft     metric.Float64Histogram
	perToken metric.Float64Histogram
	tokens   metric.Int64Histogram

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
func New(provider metric.MeterProvider) (*Metrics, error) {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	meter := provider.Meter("github.com/kvpilot/kvpilot/server/observe/genai")
	m := Metrics{models: labels.NewNames(mostModels)}
	var errs [4]error
	m.duration, errs[0] = meter.Float64Histogram("gen_ai.server.request.duration", metric.WithUnit("s"),
		metric.WithDescription("Time from a request's first byte to the last byte of its answer."),
		metric.WithExplicitBucketBoundaries(.01, .02, .04, .08, .16, .32, .64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92))
	m.ttft, errs[1] = meter.Float64Histogram("gen_ai.server.time_to_first_token", metric.WithUnit("s"),
		metric.WithDescription("Time from a request's first byte to the first content of its streamed answer, of successful requests."),
		metric.WithExplicitBucketBoundaries(.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10))
	m.perToken, errs[2] = meter.Float64Histogram("gen_ai.server.time_per_output_token", metric.WithUnit("s"),
		metric.WithDescription("Mean time per output token after the first, of successful streamed requests."),
		metric.WithExplicitBucketBoundaries(.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5))
	m.tokens, errs[3] = meter.Int64Histogram("gen_ai.client.token.usage", metric.WithUnit("{token}"),
		metric.WithDescription("Input and output tokens of a request."),
		metric.WithExplicitBucketBoundaries(1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864))
	return &m, errors.Join(errs[:]...)
}

// Record counts one request.
func (m *Metrics) Record(r Request) {
	ctx := context.Background() // exemplars are kvpilot.router's
	if r.Model != "" {
		r.Model = m.models.Of(r.Model)
	}
	ended := m.requests.Of(requestLabels{r.Operation, r.Model, r.ErrorType}, requestLabels.attributes)
	m.duration.Record(ctx, r.Duration.Seconds(), ended)
	if r.ErrorType == "" && r.FirstToken > 0 {
		m.ttft.Record(ctx, r.FirstToken.Seconds(), ended)
		if r.Output > 1 && r.Duration > r.FirstToken {
			m.perToken.Record(ctx, (r.Duration-r.FirstToken).Seconds()/float64(r.Output-1), ended)
		}
	}
	m.recordUsage(ctx, r, "input", r.Input)
	m.recordUsage(ctx, r, "output", r.Output)
}

func (m *Metrics) recordUsage(ctx context.Context, r Request, kind string, n int) {
	if n > 0 {
		m.tokens.Record(ctx, int64(n), m.usage.Of(usageLabels{r.Operation, r.Model, kind}, usageLabels.attributes))
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
