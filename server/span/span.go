package span

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// The spans of one request, in the order in which they begin. The server span above them is
// named by its surface: "POST /v1/chat/completions" or the RPC's full method.
const (
	Admit       = "kvpilot.admit"
	Read        = "kvpilot.read"
	Tokenize    = "kvpilot.tokenize"
	TokenizeRPC = "kvpilot.tokenize.call"
	Score       = "kvpilot.score"
	Choose      = "kvpilot.choose"
	Hold        = "kvpilot.hold"
	Proxy       = "kvpilot.proxy"
	Dial        = "kvpilot.dial"
	FirstByte   = "kvpilot.first_byte"
	Stream      = "kvpilot.stream"
	Release     = "kvpilot.release"
)

// Events on spans.
const (
	EventFirstToken = "kvpilot.first_token"
	EventFallback   = "kvpilot.fallback"
	EventRetry      = "kvpilot.retry"
	EventHedge      = "kvpilot.hedge"
)

// Attribute keys. Counts are tokens or blocks as the name says; times are seconds.
const (
	Model         = semconv.GenAIRequestModelKey
	Operation     = semconv.GenAIOperationNameKey
	Streamed      = semconv.GenAIRequestStreamKey
	MaxTokens     = semconv.GenAIRequestMaxTokensKey
	InputTokens   = semconv.GenAIUsageInputTokensKey
	OutputTokens  = semconv.GenAIUsageOutputTokensKey
	CachedTokens  = semconv.GenAIUsageCacheReadInputTokensKey
	Conversation  = semconv.GenAIConversationIDKey
	FirstChunk    = semconv.GenAIResponseTimeToFirstChunkKey
	ResponseID    = semconv.GenAIResponseIDKey
	FinishReasons = semconv.GenAIResponseFinishReasonsKey
	Provider      = semconv.GenAIProviderNameKey
	HTTPMethod    = semconv.HTTPRequestMethodKey
	HTTPRoute     = semconv.HTTPRouteKey
	HTTPStatus    = semconv.HTTPResponseStatusCodeKey
	URLPath       = semconv.URLPathKey
	URLScheme     = semconv.URLSchemeKey
	HTTPVersion   = semconv.NetworkProtocolVersionKey
	ServerAddress = semconv.ServerAddressKey
	ServerPort    = semconv.ServerPortKey
	ErrorType     = semconv.ErrorTypeKey

	RequestID       = attribute.Key("kvpilot.request.id")
	DecisionID      = attribute.Key("kvpilot.decision.id")
	Reason          = attribute.Key("kvpilot.reason")
	Policy          = attribute.Key("kvpilot.policy")
	Replica         = attribute.Key("kvpilot.replica.id")
	Rank            = attribute.Key("kvpilot.replica.rank")
	Candidates      = attribute.Key("kvpilot.candidates")
	PromptTokens    = attribute.Key("kvpilot.prompt.tokens")
	PromptKind      = attribute.Key("kvpilot.prompt.kind")
	OverlapTokens   = attribute.Key("kvpilot.overlap.tokens")
	BestOverlap     = attribute.Key("kvpilot.overlap.best_tokens")
	PredictedTTFT   = attribute.Key("kvpilot.predicted.ttft")
	Margin          = attribute.Key("kvpilot.margin")
	TokenizerSource = attribute.Key("kvpilot.tokenizer.source")
	KnownTokens     = attribute.Key("kvpilot.tokenizer.known_tokens")
	HeldFor         = attribute.Key("kvpilot.hold.seconds")
	Attempt         = attribute.Key("kvpilot.attempt")
	Chunks          = attribute.Key("kvpilot.stream.chunks")
	Overhead        = attribute.Key("kvpilot.overhead")
	FinishedBy      = attribute.Key("kvpilot.finished_by")
	Reused          = attribute.Key("kvpilot.connection.reused")
	Effect          = attribute.Key("kvpilot.reservation.effect")
	FallbackOf      = attribute.Key("kvpilot.fallback")
)

// Start begins a child of the span in ctx. Below a span that nobody records it makes none, so
// that a request outside the sample pays nothing for its steps.
func Start(ctx context.Context, t trace.Tracer, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	parent := trace.SpanFromContext(ctx)
	if parent.SpanContext().IsValid() && !parent.IsRecording() {
		return ctx, noop.Span{}
	}
	return t.Start(ctx, name, options...)
}

// Fail marks the span in ctx as failed with a public description and an error type of few values.
func Fail(s trace.Span, errorType, description string) {
	if !s.IsRecording() {
		return
	}
	s.SetStatus(codes.Error, description)
	s.SetAttributes(ErrorType.String(errorType))
}

// KeyValue is one attribute.
type KeyValue = attribute.KeyValue

// Note leaves an event on the span in ctx.
func Note(ctx context.Context, event string, attrs ...KeyValue) {
	if s := trace.SpanFromContext(ctx); s.IsRecording() {
		s.AddEvent(event, trace.WithAttributes(attrs...))
	}
}

// Fallback notes on the span in ctx that something was done in a lesser way, and why.
func Fallback(ctx context.Context, what, reason string) {
	s := trace.SpanFromContext(ctx)
	if !s.IsRecording() {
		return
	}
	s.AddEvent(EventFallback, trace.WithAttributes(FallbackOf.String(what), Reason.String(reason)))
}

// IDs names the trace and the span in ctx in hex; both are empty when nobody records the span.
func IDs(ctx context.Context) (traceID, spanID string) {
	s := trace.SpanFromContext(ctx)
	if !s.IsRecording() {
		return "", ""
	}
	c := s.SpanContext()
	return c.TraceID().String(), c.SpanID().String()
}

// Link ties s to a span that IDs named. What names no span is left out.
func Link(s trace.Span, traceID, spanID string) {
	t, err := trace.TraceIDFromHex(traceID)
	if err != nil {
		return
	}
	id, err := trace.SpanIDFromHex(spanID)
	if err != nil {
		return
	}
	s.AddLink(trace.Link{SpanContext: trace.NewSpanContext(trace.SpanContextConfig{TraceID: t, SpanID: id, Remote: true})})
}
