package router

import (
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/observe/recorder"
	"github.com/kvpilot/kvpilot/server/observe/span"
)

// leading is the leg of a split request that computes the prompt, and the transfer that follows. The zero value is of a request that was
// not split.
type leading struct {
	lead      stretch
	by        string
	byRank    int
	moved     int // tokens, as predicted
	counted   int // tokens, as the engine counted
	cached    int
	result    string
	delivered time.Time // when the other replica was sent the request
}

// lead begins the notes of the leg; nil when nothing is recorded. The methods of a leading take nil.
func (st *story) lead(a *attempt) *leading {
	h := st.hop()
	if h == nil {
		return nil
	}
	w := a.choice.Decision.Split()
	h.leading = leading{lead: stretch{from: a.chosen}, by: string(w.Prefill.Replica), byRank: int(w.Prefill.Rank), moved: int(w.Moved)}
	return &h.leading
}

// ended notes the end of the leg.
func (l *leading) ended(c *cache, result string) {
	if l == nil {
		return
	}
	l.lead.to, l.result, l.counted, l.cached = time.Now(), result, c.usage.PromptTokens, c.usage.CachedTokens
	if result != prefillDone {
		l.lead.fault, l.lead.failed = result, "the replica did not prefill for another one"
	}
}

// began notes that the request goes to the replica that decodes.
func (h *hop) began() {
	if h != nil {
		h.delivered = time.Now()
		h.sent.from = h.delivered
	}
}

// drawLead draws the leg that computes the prompt, and the transfer of its cache.
func (h *hop) drawLead(on *span.Canvas, t *recorder.Tracer) {
	l := &h.leading
	if l.by == "" {
		return
	}
	leg := l.lead.part(span.Prefill)
	leg.Kind = trace.SpanKindClient
	var list [5]span.KeyValue
	attrs := append(list[:0], span.Replica.String(l.by), span.Rank.Int(l.byRank), span.Attempt.Int(h.attempt))
	if l.counted > 0 {
		attrs = append(attrs, span.PromptTokens.Int(l.counted), span.CachedTokens.Int(max(0, l.cached)))
	}
	if leg.Failed != "" {
		attrs = append(attrs, span.ErrorType.String(l.result))
	}
	on.Draw(t, leg, attrs...)
	if l.delivered.IsZero() {
		return
	}
	// Its end shows only in the first token, and of an answer in one piece in the head.
	move := span.Part{Name: span.Transfer, From: l.delivered, To: h.firstToken, Above: h.proxy}
	if move.To.IsZero() {
		if move.To = h.times.Head; h.sent.failed != "" || move.To.IsZero() {
			move.To, move.Failed = h.sent.to, "no first token came"
			on.Draw(t, move, span.Replica.String(l.by), span.MovedTokens.Int(l.moved), span.ErrorType.String("lost"))
			return
		}
	}
	on.Draw(t, move, span.Replica.String(l.by), span.MovedTokens.Int(l.moved))
}
