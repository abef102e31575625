package router

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/route/router/story"
	"github.com/kvpilot/kvpilot/server/route/splits"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// requestEnds accounts for the ends of requests.
type requestEnds struct {
	metrics *metrics
	count   attempt.Counter
	log     *slog.Logger
}

// finish is the one place where a request's end is counted, logged and put on its span.
func (e *requestEnds) finish(ctx context.Context, rq *intake.Request, d *attempt.Delivery, err error) {
	took := time.Since(rq.Received)
	public := apierror.From(err)
	if public == nil && d.Scan.Failed() { // the client knows it from the engine
		public = apierror.New(apierror.UpstreamError, "the replica reported an error in its stream", nil)
	}
	e.metrics.end(ctx, rq, d, public, took)
	e.countEnd(d, public)
	endSide(rq, d, public, splits.End{Took: took})
	leaveStory(rq, d, public)
	level := slog.LevelInfo
	if public != nil {
		switch public.Fault() {
		case apierror.FaultGone:
			level = slog.LevelDebug
		case apierror.FaultOurs:
			level = slog.LevelError
		case apierror.FaultCaller:
		}
	}
	if !e.log.Enabled(ctx, level) {
		return
	}
	e.log.LogAttrs(ctx, level, "request", e.logLine(rq, d, public, took)...)
}

// logLine is the one line that a request leaves; nothing of its prompt or answer is in it.
func (e *requestEnds) logLine(rq *intake.Request, d *attempt.Delivery, public *apierror.Error, took time.Duration) []slog.Attr {
	line := append(make([]slog.Attr, 0, 16),
		slog.String("id", rq.Call.RequestID), slog.String("decision", rq.ID), slog.String("route", rq.Call.Route.String()))
	if rq.Parsed != nil {
		line = append(line, slog.String("model", intake.Clip(rq.Parsed.Model, 128)), slog.Bool("stream", rq.Parsed.Stream))
	}
	if rq.Standby.Took > 0 {
		line = append(line, slog.Duration("waited_for_replica", rq.Standby.Took.Round(time.Millisecond)))
	}
	if rq.Side != nil {
		line = append(line, slog.String("split", rq.Side.Split), slog.String("side", rq.Side.Side))
	}
	if d.Attempt != nil {
		c := d.Attempt.Choice
		line = append(line, slog.String("replica", string(c.Replica.ID)), slog.Int("prompt_tokens", c.Decision.PromptTokens), slog.Int("overlap_tokens", c.Held()))
	}
	if !d.FirstToken().IsZero() {
		line = append(line, slog.Duration("ttft", d.FirstToken().Sub(rq.Received).Round(time.Microsecond)))
	}
	line = append(line, slog.Duration("took", took.Round(time.Microsecond)), slog.Int("attempts", max(1, d.Attempts())))
	if public == nil {
		return append(line, slog.Int("status", d.Status()))
	}
	if d.Cause() != retry.CauseNone {
		line = append(line, slog.String("cause", d.Cause().String()))
	}
	return append(line, slog.Int("status", public.HTTPStatus()), slog.String("reason", apierror.Name(public.Reason)), slog.Any("error", public))
}

// countEnd counts a request that this router sent; public is its error, nil when it has none.
func (e *requestEnds) countEnd(d *attempt.Delivery, public *apierror.Error) {
	if e.count != nil && d.WasChosen() {
		e.count.Served(isFailure(public))
		return
	}
	e.countUnserved(d, public)
}

// countUnserved counts a request that no replica was chosen for, by a fault that is not its own.
func (e *requestEnds) countUnserved(d *attempt.Delivery, public *apierror.Error) {
	if e.count != nil && !d.WasChosen() && isFailure(public) {
		e.count.Unserved(apierror.Name(public.Reason))
	}
}

// isFailure reports whether e is a failure that the request is not to blame for: 429 or a server error.
func isFailure(e *apierror.Error) bool {
	if e == nil || e.Fault() == apierror.FaultGone {
		return false
	}
	status := e.HTTPStatus()
	return status == http.StatusTooManyRequests || status >= http.StatusInternalServerError
}

// leaveStory ends the story of a request, which is over.
func leaveStory(rq *intake.Request, d *attempt.Delivery, public *apierror.Error) {
	if rq.Story == nil {
		return
	}
	of := story.Subject{Route: rq.Call.Route, RequestID: strings.Clone(rq.Call.RequestID), DecisionID: rq.ID}
	if rq.Parsed != nil {
		of.Understood, of.Kind, of.Streamed, of.MaxTokens = true, rq.Parsed.Prompt.Kind, rq.Parsed.Stream, rq.Parsed.MaxTokens
		of.Unbodied = rq.Question != nil && len(rq.Question.Body) == 0
		of.Session = strings.Clone(intake.Clip(rq.Parsed.Session, 256))
		if rq.Pool != nil && rq.Pool.Model == rq.Parsed.Model {
			of.Model = rq.Pool.Model
		} else {
			of.Model = strings.Clone(intake.Clip(rq.Parsed.Model, 128))
		}
	}
	end := story.Ending{AnswerID: intake.Clip(d.Scan.ResponseID(), 128), Finish: intake.Clip(d.Scan.FinishReason(), 32), FirstToken: d.FirstToken()}
	if d.Cause() != retry.CauseNone {
		end.Cause = d.Cause().String()
	}
	end.Usage, end.Counted = d.Scan.Usage()
	rq.Story.Leave(of, end, public)
}

// endSide counts the end of a request on its side. What is not about the side is not counted: clients that leave, tenants' limits.
func endSide(rq *intake.Request, d *attempt.Delivery, public *apierror.Error, e splits.End) {
	if rq.Side == nil || public != nil && (public.Fault() == apierror.FaultGone || public.Reason == apierror.RateLimitExceeded) {
		return
	}
	e.Failed = public != nil || d.Status() >= 400
	if !d.FirstToken().IsZero() {
		e.FirstToken = d.FirstToken().Sub(rq.Received)
	}
	if d.Attempt != nil {
		if shadow := d.Attempt.Choice.Decision.Shadow; shadow != nil {
			e.Regret, e.HasRegret = shadow.Regret, true
		}
	}
	rq.Side.Ended(e)
}
