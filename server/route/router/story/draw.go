package story

import (
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/observe/recorder"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// Draw implements span.Story: it draws the steps of the request below the surface's span, and adds
// the request's result to that.
func (st *Story) Draw(on *span.Canvas) {
	t, ok := st.tracer.(*recorder.Tracer)
	if !ok {
		return
	}
	if st.admitted > 0 {
		on.Draw(t, span.Part{Name: span.Admit, From: st.received, To: st.received.Add(st.admitted)})
	}
	st.drawRead(on, t)
	st.drawTokens(on, t)
	for i := range st.hops {
		h := &st.hops[i]
		h.drawChoice(on, t)
		h.drawLead(on, t)
		if h.proxy.IsValid() {
			h.drawAttempt(on, t, st)
			on.Draw(t, span.Part{Name: span.Release, From: h.release.from, To: h.release.to}, span.FinishedBy.String(h.end.String()))
		}
	}
	st.describe(on)
}

// part is a step's span.
func (s *stretch) part(name string) span.Part {
	return span.Part{Name: name, From: s.from, To: s.to, Failed: s.failed}
}

func (st *Story) drawRead(on *span.Canvas, t *recorder.Tracer) {
	read := st.body.part(span.Read)
	switch {
	case read.From.IsZero(): // there was no body
	case read.Failed != "":
		on.Draw(t, read, span.ErrorType.String(st.body.fault))
	case st.Unbodied:
		on.Draw(t, read, span.Model.String(st.Model), span.PromptKind.String(st.Kind.String()))
	default:
		on.Draw(t, read, span.Model.String(st.Model), span.Streamed.Bool(st.Streamed), span.PromptKind.String(st.Kind.String()))
	}
}

func (st *Story) drawTokens(on *span.Canvas, t *recorder.Tracer) {
	a := &st.asked
	asked := a.part(span.Tokenize)
	asked.ID = a.id
	switch {
	case !a.id.IsValid(): // they were not asked for
	case asked.Failed != "":
		on.Draw(t, asked, span.ErrorType.String(a.fault))
	case a.source == "": // the request ended before the answer
		on.Draw(t, asked)
	default:
		if a.without != "" {
			asked.Events = []span.Event{span.FellBack(a.to, "tokenize", a.without)}
		}
		on.Draw(t, asked, span.TokenizerSource.String(a.source), span.PromptTokens.Int(a.prompt), span.KnownTokens.Int(a.known))
	}
}

// drawChoice draws the wait in the queue, the index look-up, and the choice itself.
func (h *Hop) drawChoice(on *span.Canvas, t *recorder.Tracer) {
	if h.choice.from.IsZero() {
		return // there was none to make
	}
	chosen := h.choice.part(span.Choose)
	chosen.ID = h.id
	if !h.decided {
		on.Draw(t, chosen, span.ErrorType.String(h.choice.fault))
		return
	}
	if h.held > 0 {
		h.drawHold(on, t, chosen.From)
		h.drawCopy(on, t, chosen.From)
	}
	if h.decidedBy != "" { // another router looked: this one has only the time of the question
		on.Draw(t, span.Part{Name: span.Ask, Kind: trace.SpanKindClient, From: chosen.To.Add(-h.took), To: chosen.To, Above: h.id}, span.DecidedBy.String(h.decidedBy))
		chosen.From = chosen.From.Add(h.held)
	} else {
		looked := chosen.To.Add(-h.took)
		chosen.From = looked.Add(h.scored)
		on.Draw(t, span.Part{Name: span.Score, From: looked, To: chosen.From},
			span.PromptTokens.Int(h.prompt), span.BestOverlap.Int(h.best), span.Candidates.Int(h.candidates))
	}
	var list [18]span.KeyValue
	attrs := append(list[:0], span.DecisionID.String(h.decision), span.Policy.String(string(h.policy)), span.Reason.String(string(h.reason)),
		span.Candidates.Int(h.candidates), span.Margin.Float64(h.margin))
	if h.replica != "" {
		attrs = append(attrs, span.Replica.String(h.replica), span.Rank.Int(h.rank), span.OverlapTokens.Int(h.overlap), span.PredictedTTFT.Float64(h.ttft))
		attrs = h.below(attrs)
	}
	if h.decidedBy != "" {
		attrs = append(attrs, span.DecidedBy.String(h.decidedBy))
	}
	if h.alone != "" {
		attrs = append(attrs, span.DecidedAlone.String(h.alone))
	}
	if h.reason == decision.ReasonNoKey {
		chosen.Events = []span.Event{span.FellBack(chosen.To, "choose", string(h.reason))}
	}
	if chosen.Failed != "" {
		attrs = append(attrs, span.ErrorType.String(h.choice.fault))
	}
	on.Draw(t, chosen, attrs...)
}

// drawCopy draws the copy of the prompt's beginning for which the request has waited, as far as it was under way by the choice.
func (h *Hop) drawCopy(on *span.Canvas, t *recorder.Tracer, from time.Time) {
	w := h.copied
	if w == nil {
		return
	}
	move := span.Part{Name: span.Transfer, From: w.Began, To: w.Ended}
	if move.To.IsZero() {
		move.To = from.Add(h.held)
	}
	on.Draw(t, move, span.Replica.String(string(w.Prefill.Replica)), span.MovedTokens.Int(int(w.Moved)))
}

// drawHold draws the wait in the router. Of a program that waited for memory it says how much it needed.
func (h *Hop) drawHold(on *span.Canvas, t *recorder.Tracer, from time.Time) {
	var list [5]span.KeyValue
	attrs := append(list[:0], span.HeldFor.Float64(h.held.Seconds()))
	if w := h.memory; w != nil {
		attrs = append(attrs, span.MemoryFor.Float64(w.Waited.Seconds()), span.MemoryNeeded.Int(w.Tokens), span.MemoryFree.Int(w.Free), span.ProgramsBefore.Int(w.Before))
	}
	on.Draw(t, span.Part{Name: span.Hold, From: from, To: from.Add(h.held)}, attrs...)
}

// drawAttempt draws how a replica was reached: the new connection, when it took one, the wait for the
// head of the answer, the answer.
func (h *Hop) drawAttempt(on *span.Canvas, t *recorder.Tracer, st *Story) {
	if !h.times.DialBegan.IsZero() {
		h.drawWait(on, t, span.Dial, h.times.DialBegan, h.times.Dialed)
	}
	if !h.times.Began.IsZero() {
		h.drawWait(on, t, span.FirstByte, h.times.Began, h.times.Head)
	}
	if h.outcome == retry.OK && !h.times.Head.IsZero() {
		answer := span.Part{Name: span.Stream, From: h.times.Head, To: h.sent.to, Above: h.proxy}
		switch {
		case h.broken && h.sent.fault == retry.Canceled.String():
			answer.Failed = h.sent.failed
			on.Draw(t, answer, span.Chunks.Int(h.chunks), span.ErrorType.String(h.sent.fault))
		case h.broken:
			answer.Failed = "the answer ended early"
			on.Draw(t, answer, span.Chunks.Int(h.chunks), span.ErrorType.String("broken"))
		default:
			on.Draw(t, answer, span.Chunks.Int(h.chunks))
		}
	}
	host, port := replica.HostPort(h.url)
	var list [20]span.KeyValue
	attrs := append(list[:0],
		span.Operation.String(st.Route.Operation()), span.Provider.String("vllm"), span.Model.String(st.Model), span.HTTPMethod.String(h.method),
		span.DecisionID.String(st.DecisionID), span.Attempt.Int(h.attempt), span.Replica.String(h.replica), span.Rank.Int(h.rank),
		span.OverlapTokens.Int(h.overlap), span.Overhead.Float64(h.overhead.Seconds()),
		span.ServerAddress.String(host), span.ServerPort.Int(port), span.URLFull.String(h.url+h.path), span.Reused.Bool(h.times.DialBegan.IsZero() && !h.times.Began.IsZero()))
	if h.status != 0 {
		attrs = append(attrs, span.HTTPStatus.Int(h.status))
	}
	var events []span.Event
	if !h.firstToken.IsZero() {
		attrs = append(attrs, span.FirstChunk.Float64(h.firstToken.Sub(h.sent.from).Seconds()))
		events = []span.Event{{Name: span.EventFirstToken, At: h.firstToken}}
	}
	whole := h.sent.part(span.Proxy)
	whole.Kind, whole.ID, whole.Events = trace.SpanKindClient, h.proxy, events
	if whole.Failed != "" {
		attrs = append(attrs, span.ErrorType.String(h.sent.fault))
	}
	on.Draw(t, whole, attrs...)
}

// drawWait draws a part of an attempt, which failed when it has no end.
func (h *Hop) drawWait(on *span.Canvas, t *recorder.Tracer, name string, from, to time.Time) {
	wait := span.Part{Name: name, From: from, To: to, Above: h.proxy}
	if to.IsZero() {
		wait.To, wait.Failed = h.sent.to, "not reached"
		on.Draw(t, wait, span.ErrorType.String(h.outcome.String()))
		return
	}
	on.Draw(t, wait)
}

// describe adds the request's result to the surface's span.
func (st *Story) describe(on *span.Canvas) {
	var list [24]span.KeyValue
	attrs := append(list[:0], span.RequestID.String(st.RequestID), span.DecisionID.String(st.DecisionID))
	if st.Understood {
		attrs = append(attrs, span.Model.String(st.Model), span.Operation.String(st.Route.Operation()))
		if !st.Unbodied {
			attrs = append(attrs, span.Streamed.Bool(st.Streamed))
		}
		if st.MaxTokens > 0 {
			attrs = append(attrs, span.MaxTokens.Int(st.MaxTokens))
		}
		if st.Session != "" {
			attrs = append(attrs, span.Conversation.String(st.Session))
		}
	}
	if n := len(st.hops); n > 0 && st.hops[n-1].decided {
		h := &st.hops[n-1]
		attrs = append(attrs, span.Replica.String(h.replica), span.Policy.String(string(h.policy)),
			span.OverlapTokens.Int(h.overlap), span.BestOverlap.Int(h.best), span.Candidates.Int(h.candidates))
	}
	if !st.FirstToken.IsZero() {
		attrs = append(attrs, span.FirstChunk.Float64(st.FirstToken.Sub(st.received).Seconds()))
	}
	if st.AnswerID != "" {
		attrs = append(attrs, span.ResponseID.String(st.AnswerID))
	}
	if st.Counted {
		attrs = append(attrs, span.InputTokens.Int(st.Usage.PromptTokens), span.OutputTokens.Int(st.Usage.CompletionTokens))
		if st.Usage.CachedTokens >= 0 {
			attrs = append(attrs, span.CachedTokens.Int(st.Usage.CachedTokens))
		}
	}
	if st.Cause != "" {
		attrs = append(attrs, span.Cause.String(st.Cause))
	}
	on.Set(attrs...)
	if st.Finish != "" {
		on.SetTexts(span.FinishReasons, st.Finish)
	}
	if st.fault != "" {
		on.Set(span.ErrorType.String(st.fault))
		on.Fail(st.words)
	}
}
