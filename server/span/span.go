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
	Release     = "kvpilot.release"
)

// Events on spans.
const (
	EventFirstToken = "kvpilot.first_token"
	EventFallback   = "kvpilot.fallback"
	EventRetry      = "kvpilot.retry"
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
	ResponseID    = semconv.GenAIResponseIDKey
	HTTPMethod    = semconv.HTTPRequestMethodKey
	HTTPRoute     = semconv.HTTPRouteKey
	HTTPStatus    = semconv.HTTPResponseStatusCodeKey
	URLPath       = semconv.URLPathKey
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
	PromptBlocks    = attribute.Key("kvpilot.prompt.blocks")
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
	TTFT            = attribute.Key("kvpilot.ttft")
	Overhead        = attribute.Key("kvpilot.overhead")
	FinishedBy      = attribute.Key("kvpilot.finished_by")
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
	s.AddEvent(EventFallback, trace.WithAttributes(attribute.String("kvpilot.fallback", what), Reason.String(reason)))
}
