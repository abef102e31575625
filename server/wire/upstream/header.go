package upstream

import (
	"context"
	"net/http"
	"strconv"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/wire/http1"
)

// forwarded calls add for each header that goes to the replica. Values with bytes that would
// end a header are left out; the framing headers are the transport's.
func forwarded(ctx context.Context, t Target, r *Request, add func(name, value string)) {
	spanned := trace.SpanContextFromContext(ctx)
	if r.Span.IsValid() {
		spanned = spanned.WithSpanID(r.Span)
	}
	listed := r.Header["Connection"]
	for name, values := range r.Header {
		canonical := http.CanonicalHeaderKey(name)
		if withheld(canonical) || http1.Nominated(listed, canonical) {
			continue
		}
		if canonical == "Content-Type" && r.ContentType != "" {
			continue
		}
		if spanned.IsValid() && (canonical == "Traceparent" || canonical == "Tracestate") {
			continue
		}
		if !http1.ValidName(canonical) {
			continue
		}
		for _, v := range values {
			if http1.ValidValue(v) {
				add(canonical, v)
			}
		}
	}
	if r.ContentType != "" && http1.ValidValue(r.ContentType) {
		add("Content-Type", r.ContentType)
	}
	if r.RequestID != "" && http1.ValidValue(r.RequestID) {
		add("X-Request-Id", r.RequestID)
	}
	if r.Client != "" {
		add("X-Forwarded-For", r.Client)
	}
	if spanned.IsValid() {
		addTrace(spanned, add)
	}
	if !t.Replica.APIKey.IsEmpty() && http1.ValidValue(t.Replica.APIKey.Reveal()) {
		add("Authorization", "Bearer "+t.Replica.APIKey.Reveal())
	}
	switch rank := r.Header["X-Data-Parallel-Rank"]; {
	case len(t.Replica.Slots) > 1:
		add("X-Data-Parallel-Rank", strconv.Itoa(t.Rank))
	case r.Steers && len(rank) > 0 && http1.ValidValue(rank[0]):
		add("X-Data-Parallel-Rank", rank[0])
	}
}

// addTrace injects a span, in W3C's form.
func addTrace(sc trace.SpanContext, add func(name, value string)) {
	const hex = "0123456789abcdef"
	b := make([]byte, 0, 55)
	b = append(b, "00-"...)
	traceID, spanID := sc.TraceID(), sc.SpanID()
	for _, x := range traceID {
		b = append(b, hex[x>>4], hex[x&15])
	}
	b = append(b, '-')
	for _, x := range spanID {
		b = append(b, hex[x>>4], hex[x&15])
	}
	b = append(b, '-', '0', '0'+byte(sc.TraceFlags()&trace.FlagsSampled))
	add("Traceparent", string(b))
	if state := sc.TraceState().String(); state != "" {
		add("Tracestate", state)
	}
}
