package span

import (
	"encoding/hex"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
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
	// Ask is the question to the router that decides, Decide its work there.
	Ask    = "kvpilot.ask"
	Decide = "kvpilot.decide"
	// Prefill is the request to a replica that computes the prompt for another one, Transfer the time until that one has read its cache.
	Prefill   = "kvpilot.prefill"
	Transfer  = "kvpilot.transfer"
	Proxy     = "kvpilot.proxy"
	Dial      = "kvpilot.dial"
	FirstByte = "kvpilot.first_byte"
	Stream    = "kvpilot.stream"
	Release   = "kvpilot.release"
	// DryRun is the first span of a prompt that is tried in the console.
	DryRun = "kvpilot.dry_run"
)

// Events on spans.
const (
	EventFirstToken = "kvpilot.first_token"
	EventFallback   = "kvpilot.fallback"
	EventRetry      = "kvpilot.retry"
	EventHedge      = "kvpilot.hedge"
	EventResume     = "kvpilot.resume"
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
	URLFull       = semconv.URLFullKey
	URLScheme     = semconv.URLSchemeKey
	HTTPVersion   = semconv.NetworkProtocolVersionKey
	ServerAddress = semconv.ServerAddressKey
	ServerPort    = semconv.ServerPortKey
	ErrorType     = semconv.ErrorTypeKey

	RequestID       = attribute.Key("kvpilot.request.id")
	DecisionID      = attribute.Key("kvpilot.decision.id")
	Reason          = attribute.Key("kvpilot.reason")
	Cause           = attribute.Key("kvpilot.cause")
	Policy          = attribute.Key("kvpilot.policy")
	Replica         = attribute.Key("kvpilot.replica.id")
	Rank            = attribute.Key("kvpilot.replica.rank")
	Candidates      = attribute.Key("kvpilot.candidates")
	PromptTokens    = attribute.Key("kvpilot.prompt.tokens")
	PromptKind      = attribute.Key("kvpilot.prompt.kind")
	OverlapTokens   = attribute.Key("kvpilot.overlap.tokens")
	BestOverlap     = attribute.Key("kvpilot.overlap.best_tokens")
	HostTokens      = attribute.Key("kvpilot.overlap.host_tokens")
	StoreTokens     = attribute.Key("kvpilot.overlap.store_tokens")
	PredictedLoad   = attribute.Key("kvpilot.predicted.load")
	Directory       = attribute.Key("kvpilot.directory.source")
	DirectoryResult = attribute.Key("kvpilot.directory.result")
	DirectoryFor    = attribute.Key("kvpilot.directory.seconds")
	PredictedTTFT   = attribute.Key("kvpilot.predicted.ttft")
	MovedTokens     = attribute.Key("kvpilot.moved.tokens")
	Margin          = attribute.Key("kvpilot.margin")
	DecidedBy       = attribute.Key("kvpilot.decided_by")
	AskedBy         = attribute.Key("kvpilot.asked_by")
	DecidedAlone    = attribute.Key("kvpilot.alone")
	TokenizerSource = attribute.Key("kvpilot.tokenizer.source")
	KnownTokens     = attribute.Key("kvpilot.tokenizer.known_tokens")
	HeldFor         = attribute.Key("kvpilot.hold.seconds")
	MemoryFor       = attribute.Key("kvpilot.memory.seconds")
	MemoryNeeded    = attribute.Key("kvpilot.memory.needed_tokens")
	MemoryFree      = attribute.Key("kvpilot.memory.free_tokens")
	ProgramsBefore  = attribute.Key("kvpilot.memory.programs_before")
	Attempt         = attribute.Key("kvpilot.attempt")
	Chunks          = attribute.Key("kvpilot.stream.chunks")
	Overhead        = attribute.Key("kvpilot.overhead")
	FinishedBy      = attribute.Key("kvpilot.finished_by")
	Reused          = attribute.Key("kvpilot.connection.reused")
	Effect          = attribute.Key("kvpilot.reservation.effect")
	Report          = attribute.Key("kvpilot.reservation.report")
	FallbackOf      = attribute.Key("kvpilot.fallback")
)

// Fail marks the span in ctx as failed with a public description and an error type of few values.
func Fail(s trace.Span, errorType, description string) {
	if !s.IsRecording() {
		return
	}
	s.SetStatus(codes.Error, description)
	Set(s, ErrorType.String(errorType))
}

// IDs names the trace of a span in hex, and the span in it that was planned, or the span itself;
// both are empty when it is not recorded.
func IDs(above trace.Span, planned trace.SpanID) (traceID, spanID string) {
	if !above.IsRecording() {
		return "", ""
	}
	c := above.SpanContext()
	if !planned.IsValid() {
		planned = c.SpanID()
	}
	trace := c.TraceID()
	var text [2*len(trace) + 2*len(planned)]byte
	hex.Encode(text[:], trace[:])
	hex.Encode(text[2*len(trace):], planned[:])
	both := string(text[:])
	return both[:2*len(trace)], both[2*len(trace):]
}

// Link ties s to a span that IDs named. Ids that name no span are left out.
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
