package intake

import (
	"context"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// NewQuestion makes the request of a question.
func (in *Intake) NewQuestion(ctx context.Context, q *Question) *Request {
	rq := in.NewRequest(ctx, &Call{
		Route: q.Route, Header: q.Header, Body: q.Body, RequestID: q.RequestID,
		Caller: Caller{Tenant: q.Tenant, ShowOverlap: q.ShowOverlap, Steers: true}, Options: q.Options, Received: q.Received,
	})
	rq.Question = q
	return rq
}

// question reads a question.
func (in *Intake) question(ctx context.Context, rq *Request, q *Question) error {
	if err := in.Limits.Enter(rq); err != nil {
		return err
	}
	if err := in.readQuestion(rq, q); err != nil {
		return err
	}
	if q.Model != "" {
		rq.Parsed.Model = q.Model
	}
	if q.Session != "" {
		rq.Parsed.Session, rq.Parsed.SessionSource = q.Session, "session_id"
	}
	if q.Salt != "" {
		rq.Parsed.Salt, rq.Parsed.Prompt.Salt = q.Salt, q.Salt
	}
	if q.Priority != 0 {
		rq.Parsed.Priority = -q.Priority
	}
	in.Limits.capPriority(rq)
	if err := isolate(rq); err != nil {
		return err
	}
	if err := in.places.findAdapter(ctx, rq, q.Adapter); err != nil {
		if rq.Parsed.Truncated && rq.Parsed.Model == "" && apierror.From(err).Reason == apierror.InvalidBody {
			return errCutBeforeModel() // the caller's body may well name one
		}
		return err
	}
	if err := denyOld(rq); err != nil {
		return err
	}
	return in.places.place(ctx, rq)
}

// Ask prepares a question. Its caller must end the grant of the request.
func (in *Intake) Ask(ctx context.Context, rq *Request) error {
	if err := in.question(ctx, rq, rq.Question); err != nil {
		return err
	}
	if err := in.encoder.tokenize(ctx, rq); err != nil {
		return err
	}
	in.lookups.find(ctx, rq)
	return nil
}

// errCutBeforeModel rejects a cut body that lacks its model where the model is needed.
func errCutBeforeModel() *apierror.Error {
	return apierror.New(apierror.BodyTooLarge, "the body was cut off before its model, and the router does not serve exactly one: raise the proxy's limit for bodies", nil, apierror.WithParam("model"))
}

// readQuestion finds the prompt in any of its forms.
func (in *Intake) readQuestion(rq *Request, q *Question) error {
	switch {
	case len(q.Body) > 0:
		if err := in.reader.read(rq); err != nil {
			return err
		}
		rq.Call.Route = rq.Parsed.Route
	default:
		rq.Call.Route = openai.RouteCompletions
		rq.Parsed = &openai.Request{Route: openai.RouteCompletions, Wanted: openai.Wanted{N: 1, Stream: true}}
		p := &rq.Parsed.Prompt
		p.API = prompt.APICompletions
		switch {
		case len(q.IDs) > 0:
			p.Kind, p.IDs = prompt.KindIDs, q.IDs
		case q.Text != "":
			p.Kind, p.Text = prompt.KindText, q.Text
		}
		rq.Parsed.Session, rq.Parsed.SessionSource = openai.SessionFrom(q.Header, rq.Settings.sessions)
		rq.Parsed.SessionReturn, rq.Parsed.SessionEnds = openai.SessionReturn(q.Header)
	}
	if !rq.Call.Route.Generates() {
		return apierror.New(apierror.NotSupported, "the body is of a kind whose place in a cache does not matter", nil)
	}
	return nil
}
