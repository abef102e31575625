package router

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// handoffs chooses replicas for requests that a gateway sends, and follows their answers.
type handoffs struct {
	intake   *intake.Intake
	attempts *attempt.Dispatcher
	registry *registry.Registry
	breaker  *breaker.Breaker
	ends     *requestEnds
	inFlight metric.Int64UpDownCounter
}

// Handoff is a request that a gateway sends to the replica that was chosen for it. The holder reports the answer as the gateway
// reports it: Begin, Write and End, which must be called. Its methods are called from one goroutine at a time.
type Handoff struct {
	parts *handoffs
	rq    *intake.Request
	t     *attempt.Tries
	d     *attempt.Delivery
	ahead leadBooking
	// verdict is that of the answer's head; begun is set once there is one.
	verdict retry.Verdict
	begun   bool
	over    bool
}

// Sight is how much of the answer the holder of a Handoff sees.
type Sight uint8

const (
	// SeesAll reports the head, each piece of the body and the end.
	SeesAll Sight = iota
	// SeesHead reports the head of the answer only.
	SeesHead
	// SeesNothing reports nothing.
	SeesNothing
)

func (ho *handoffs) make(ctx context.Context, call *intake.Call, sight Sight) (_ *Handoff, err error) {
	h := &Handoff{parts: ho, rq: ho.intake.NewRequest(ctx, call), d: &attempt.Delivery{}}
	ho.inFlight.Add(context.Background(), 1)
	done := false
	defer func() {
		if !done { // also when a part panics
			h.finish(ctx, err)
		}
	}()
	if err = ho.attempts.Blame.Sendable(call); err != nil {
		return nil, err
	}
	h.rq.Story.Admit(call.Received)
	id, anywhere := storedID(call)
	if anywhere = anywhere || len(call.Body) == 0; anywhere {
		err = ho.intake.Anywhere(ctx, h.rq, id)
	} else {
		err = ho.intake.Prepare(ctx, h.rq)
	}
	if err != nil {
		return nil, err
	}
	h.t = attempt.NewTries(h.rq)
	if anywhere {
		h.t.Ask.Unstreamed, h.t.Ask.Quiet, h.t.Ask.NoQueue = true, true, true
	}
	// A gateway sends the request to one replica. Where that one does not have the prompt computed elsewhere, or its first token is not seen,
	// the request is served whole.
	h.t.Ask.Splittable = h.t.Ask.Splittable && call.Sidecars && sight == SeesAll
	if sight != SeesAll { // its first token is not seen, and its silence says nothing
		h.t.Ask.Unstreamed, h.t.Ask.Quiet = true, true
	}
	if err = h.choose(ctx); err != nil {
		return nil, err
	}
	done = true
	return h, nil
}

// storedID is the id of the stored response that a call is about; empty where the call is about all of them.
func storedID(call *intake.Call) (id string, about bool) {
	rest, about := strings.CutPrefix(call.Path, openai.RouteResponses.Path()+"/")
	id, _, _ = strings.Cut(rest, "/")
	return id, about
}

// choose has a replica chosen, and makes that the attempt under way.
func (h *Handoff) choose(ctx context.Context) error {
	a := attempt.NewAttempt(func() {})
	if f := h.parts.attempts.Choose(ctx, h.rq, h.t, h.d, a); f != nil {
		return f.Public
	}
	h.ahead.lead = a.Choice.Prefill()
	h.parts.attempts.Picker.LearnRouted(ctx, h.rq, h.t, a)
	a.Hop = attempt.BeginHop(h.rq, a)
	a.Hop.Sends(intake.Clip(h.rq.Call.EnginePath(), 256), a.ChosenAt())
	return nil
}

// Body is the body for the replica, and whether it is another one than the client's.
func (h *Handoff) Body() (body []byte, changed bool) {
	body = h.rq.Body
	if h.rq.Upload != nil {
		body = h.rq.Upload.Head
	}
	was := h.rq.Call.Body
	return body, len(body) != len(was) || len(body) > 0 && &body[0] != &was[0]
}

// Streams reports whether the client asks for a stream of events.
func (h *Handoff) Streams() bool { return h.rq.Parsed.Stream }

// Replica is the one that was chosen.
func (h *Handoff) Replica() *replica.Replica { return h.d.Attempt.Choice.Replica }

// Decision is that of the attempt under way. It must not be changed.
func (h *Handoff) Decision() *decision.Decision { return h.d.Attempt.Choice.Decision }

// Replicas are the chosen one and at most n-1 others that could serve the request, the best first.
func (h *Handoff) Replicas(n int) []*replica.Replica {
	chosen := h.Replica()
	list := []*replica.Replica{chosen}
	if n < 2 || h.rq.Holder != "" || h.rq.Call.Options.Pinned != "" {
		return list
	}
	view := h.parts.registry.Snapshot()
	others := runnersUp(h.Decision().List(), chosen.ID)
	for _, c := range others {
		if len(list) == n {
			break
		}
		// The header that names a rank is the same for all replicas of the list.
		if r, ok := view.Replica(c); ok && r.State == replica.StateReady && len(r.Slots) == 1 && len(chosen.Slots) == 1 {
			list = append(list, r)
		}
	}
	return list
}

// Header is what the request to the replica has in addition to the client's headers, or in place of them.
func (h *Handoff) Header(ctx context.Context) http.Header {
	out, a := http.Header{}, h.d.Attempt
	if id := h.rq.EngineID(); id != "" {
		out.Set("X-Request-Id", id)
	}
	if len(a.Choice.Replica.Slots) > 1 {
		out.Set("X-Data-Parallel-Rank", strconv.Itoa(a.Choice.Rank))
	}
	if key := a.Choice.Replica.APIKey; !key.IsEmpty() {
		out.Set("Authorization", "Bearer "+key.Reveal())
	}
	if h.rq.Lowered {
		out.Set(intake.HeaderPriority, strconv.Itoa(h.rq.Parsed.Priority))
	}
	traceHeader(ctx, a.Hop.Span(), out)
	return out
}

// Served reports that another replica served the request than the one that was chosen. The booking moves there.
func (h *Handoff) Served(ctx context.Context, id replica.ID) {
	a := h.d.Attempt
	if id == a.Choice.Replica.ID || a.HasEnded() || h.begun {
		return
	}
	// Nothing is known about the first replica but that the gateway left it: it is probed again.
	h.parts.attempts.Blame.Probe(a.Choice.Replica.ID)
	h.parts.attempts.Blame.Settle(h.rq, h.d, a, retry.Canceled)
	h.release(a, nil, chooser.Result{End: decision.EndMoved, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1, ServedBy: id})
	h.t.Ask.Attempt++
	h.t.Ask.Options.Pinned, h.t.Ask.Options.PinnedRank, h.t.Ask.NoQueue = id, -1, true
	if err := h.choose(ctx); err != nil {
		h.d.Take(a) // what follows is still about this request
	}
}

// Head is the head of an answer.
type Head struct {
	Status int
	Header http.Header
	// Unreached is set when the gateway made the answer because it could not reach the replica.
	Unreached bool
}

// Begin reports the head of the answer. It returns the headers that explain the choice to the client.
func (h *Handoff) Begin(head Head) http.Header {
	a, out := h.d.Attempt, http.Header{}
	h.begun = true
	h.verdict = verdictOf(head)
	h.d.Begin(head.Status)
	a.Hop.Head(h.verdict, head.Status)
	if wait, known := retry.After(head.Header, time.Now()); known && (h.verdict == retry.Refused || h.verdict == retry.Unavailable) {
		h.parts.breaker.Pause(a.Choice.Replica.ID, wait)
	}
	if h.verdict == retry.OK {
		a.Choice.Begin()
		a.Choice.Alive()
		h.parts.attempts.Blame.Served(h.rq, h.d, false)
	}
	h.d.Scan.Reset(h.rq.Parsed.Prompt.API, attempt.MediaType(head.Header) == "text/event-stream")
	a.Explain(h.rq, out)
	h.parts.intake.Limits.Explain(h.rq, out)
	return out
}

// verdictOf says what the head of an answer means for the replica.
func verdictOf(head Head) retry.Verdict {
	switch {
	case head.Unreached:
		return retry.Unreachable
	case head.Status < 400:
		return retry.OK
	case head.Status == http.StatusTooManyRequests:
		return retry.Refused
	case head.Status < 500, head.Status == http.StatusNotImplemented:
		return retry.ClientFault
	case head.Status == http.StatusServiceUnavailable:
		return retry.Unavailable
	case head.Status == http.StatusBadGateway, head.Status == http.StatusGatewayTimeout:
		return retry.Gateway
	}
	return retry.EngineError
}

// Write reports the next piece of the answer's body.
func (h *Handoff) Write(piece []byte) {
	if !h.begun || h.verdict != retry.OK || len(piece) == 0 {
		return
	}
	d, a := h.d, h.d.Attempt
	first := d.Scan.ContentEvents() == 0
	d.Scan.Feed(piece)
	a.Choice.Alive()
	n := d.Scan.ContentEvents()
	if n == 0 || !h.rq.Parsed.Stream {
		return
	}
	if first {
		h.ahead.computed()
		d.SawFirstToken()
	}
	a.Progress(n)
}

// Complete reports whether the stream of events said that it is over; false for other answers.
func (h *Handoff) Complete() bool { return h.d.Scan.Done() }

// End ends the request: err is nil when the answer came whole. The booking is released. Only the first call counts.
func (h *Handoff) End(ctx context.Context, err error) {
	if h.over {
		return
	}
	if err == nil && !h.begun { // its answer is not seen
		h.d.Begin(http.StatusOK)
	}
	a := h.d.Attempt
	outcome, end := h.verdict, attempt.EndOf(h.verdict)
	var f *attempt.Failure
	switch {
	case h.verdict != retry.OK:
		f = &attempt.Failure{Outcome: h.verdict, Public: apierror.Upstream(h.d.Status(), "", nil)}
		if end == decision.EndMoved { // the gateway may retry, unseen
			end = decision.EndFailed
		}
	case err != nil:
		a.EndedEarly()
		outcome, end = retry.Canceled, decision.EndCanceled
		f = &attempt.Failure{Outcome: outcome, Public: apierror.From(err)}
	case h.begun:
		outcome, end = h.d.Outcome()
	default:
		outcome, end = retry.Canceled, decision.EndCompleted // says nothing about the replica
	}
	if !a.HasEnded() {
		blamed := outcome
		if a.IsSplit() && outcome == retry.EngineError { // perhaps the other replica's doing, or the transfer's
			blamed = retry.Canceled
		}
		h.parts.attempts.Blame.Settle(h.rq, h.d, a, blamed)
		result := chooser.ResultOf(end)
		if h.begun {
			h.parts.attempts.LearnUsage(ctx, h.rq, h.d, &result)
		}
		h.release(a, f, result)
	}
	if f != nil {
		err = f.Public
	}
	h.finish(ctx, err)
}

// release ends an attempt.
func (h *Handoff) release(a *attempt.Attempt, f *attempt.Failure, result chooser.Result) {
	a.Finish()
	attempt.EndHop(h.rq, h.d, f)
	if result.End == decision.EndCompleted {
		h.ahead.computed()
	}
	h.ahead.release(result.End)
	a.Choice.Release(result)
	a.Hop.Released(result.End)
}

// finish accounts for the end of the request.
func (h *Handoff) finish(ctx context.Context, err error) {
	h.over = true
	if err == nil && h.d.Attempt == nil {
		err = errors.New("the choice panicked")
	}
	h.parts.attempts.Blame.Conclude(h.rq, h.d)
	h.parts.ends.finish(ctx, h.rq, h.d, err)
	settle(h.parts.intake.Limits, h.rq, h.d, err)
	h.rq.Enc.Release()
}

// Lasts is how long the answer is predicted to take from the choice on.
func (h *Handoff) Lasts() time.Duration {
	pick := h.Decision().Pick()
	if pick == nil {
		return 0
	}
	tokens := h.t.Ask.ExpectedOutput
	if limit := h.t.Ask.OutputLimit; limit > 0 && (tokens <= 0 || limit < tokens) {
		tokens = limit
	}
	return time.Duration((pick.TTFT + pick.TPOT*float64(max(0, tokens))) * float64(time.Second))
}

// Prefiller is the replica that is to compute the prompt for Replica; nil where the request is served whole.
func (h *Handoff) Prefiller() *replica.Replica {
	if lead := h.d.Attempt.Choice.Prefill(); lead != nil {
		return lead.Replica
	}
	return nil
}
