package router

import (
	"context"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// newQuestion makes the request of a question.
func (in *intake) newQuestion(ctx context.Context, q *Question) *request {
	rq := in.newRequest(ctx, &Call{
		Route: q.Route, Header: q.Header, Body: q.Body, RequestID: q.RequestID,
		Caller: Caller{Tenant: q.Tenant, ShowOverlap: q.ShowOverlap, Steers: true}, Options: q.Options, Received: q.Received,
	})
	rq.question = q
	return rq
}

// question reads a question.
func (in *intake) question(ctx context.Context, rq *request, q *Question) error {
	if err := in.limits.enter(rq); err != nil {
		return err
	}
	if err := in.readQuestion(rq, q); err != nil {
		return err
	}
	if q.Model != "" {
		rq.parsed.Model = q.Model
	}
	if q.Session != "" {
		rq.parsed.Session, rq.parsed.SessionSource = q.Session, "session_id"
	}
	if q.Salt != "" {
		rq.parsed.Salt, rq.parsed.Prompt.Salt = q.Salt, q.Salt
	}
	if q.Priority != 0 {
		rq.parsed.Priority = -q.Priority
	}
	in.limits.capPriority(rq)
	if err := isolate(rq); err != nil {
		return err
	}
	if err := in.places.findAdapter(ctx, rq, q.Adapter); err != nil {
		if rq.parsed.Truncated && rq.parsed.Model == "" && apierror.From(err).Reason == apierror.InvalidBody {
			return errCutBeforeModel() // the caller's body may well name one
		}
		return err
	}
	if err := denyOld(rq); err != nil {
		return err
	}
	return in.places.place(ctx, rq)
}

// ask learns what the answer to a question needs. Its caller must end the grant of the request.
func (in *intake) ask(ctx context.Context, rq *request) error {
	if err := in.question(ctx, rq, rq.question); err != nil {
		return err
	}
	return in.encoder.tokenize(ctx, rq)
}

// errCutBeforeModel rejects a cut body that lacks its model where the model is needed.
func errCutBeforeModel() *apierror.Error {
	return apierror.New(apierror.BodyTooLarge, "the body was cut off before its model, and the router does not serve exactly one: raise the proxy's limit for bodies", nil, apierror.WithParam("model"))
}

// readQuestion finds the prompt in any of its forms.
func (in *intake) readQuestion(rq *request, q *Question) error {
	switch {
	case len(q.Body) > 0:
		if err := in.reader.read(rq); err != nil {
			return err
		}
		rq.call.Route = rq.parsed.Route
	default:
		rq.call.Route = openai.RouteCompletions
		rq.parsed = &openai.Request{Route: openai.RouteCompletions, N: 1, Stream: true}
		p := &rq.parsed.Prompt
		p.API = prompt.APICompletions
		switch {
		case len(q.IDs) > 0:
			p.Kind, p.IDs = prompt.KindIDs, q.IDs
		case q.Text != "":
			p.Kind, p.Text = prompt.KindText, q.Text
		}
		rq.parsed.Session, rq.parsed.SessionSource = openai.SessionFrom(q.Header, rq.set.sessions)
		rq.parsed.SessionReturn, rq.parsed.SessionEnds = openai.SessionReturn(q.Header)
	}
	if !rq.call.Route.Generates() {
		return apierror.New(apierror.NotSupported, "the body is of a kind whose place in a cache does not matter", nil)
	}
	return nil
}
