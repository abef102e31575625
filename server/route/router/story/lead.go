package story

import (
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/observe/recorder"
	"github.com/kvpilot/kvpilot/server/observe/span"
)

// Leading is the leg of a split request that computes the prompt, and the transfer that follows. The zero value is of a request that was
// not split.
type Leading struct {
	lead      stretch
	by        string
	byRank    int
	moved     int // tokens, as predicted
	counted   int // tokens, as the engine counted
	cached    int
	result    string
	delivered time.Time // when the other replica was sent the request
}

// Lead begins the notes of the leg; nil when nothing is recorded. The methods of a Leading take nil.
func (st *Story) Lead(from time.Time, d *decision.Decision) *Leading {
	h := st.hop()
	if h == nil {
		return nil
	}
	w := d.Split()
	h.Leading = Leading{lead: stretch{from: from}, by: string(w.Prefill.Replica), byRank: int(w.Prefill.Rank), moved: int(w.Moved)}
	return &h.Leading
}

// Ended notes the end of the leg: done, or why not. prompt and cached are the engine's counts, negative where it gave none.
func (l *Leading) Ended(result string, done bool, prompt, cached int) {
	if l == nil {
		return
	}
	l.lead.to, l.result, l.counted, l.cached = time.Now(), result, prompt, cached
	if !done {
		l.lead.fault, l.lead.failed = result, "the replica did not prefill for another one"
	}
}

// Began notes that the request goes to the replica that decodes.
func (h *Hop) Began() {
	if h != nil {
		h.delivered = time.Now()
		h.sent.from = h.delivered
	}
}

// drawLead draws the leg that computes the prompt, and the transfer of its cache.
func (h *Hop) drawLead(on *span.Canvas, t *recorder.Tracer) {
	l := &h.Leading
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
