package remote

import (
	"context"
	"errors"
	"net/http"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// nativePath is where vLLM renders a body of another format than chat and completions (from 0.32 on); empty
// where there is no such route.
func nativePath(api prompt.API) string {
	switch api {
	case prompt.APIMessages:
		return "/v1/messages/render"
	case prompt.APIResponses:
		return "/v1/responses/render"
	case prompt.APIOther, prompt.APIChat, prompt.APICompletions:
	}
	return ""
}

// Native reports whether there is a route that renders the prompt's body as it is. The text of a stored response is not in the body.
func Native(p *prompt.Prompt) bool {
	return nativePath(p.API) != "" && len(p.Body) > 0 && !p.Partial && rawjson.IsNull(rawjson.Member(p.Body, "previous_response_id"))
}

// askNative asks for the ids of the body as the client sent it.
func (c *client) askNative(ctx context.Context, e *endpoint, j *Job) (*Answer, error) {
	body := withModel(j.Native.Body, j.Model)
	if body == nil {
		return nil, &Fault{Kind: KindUnmappable}
	}
	status, header, buf, err := c.post(ctx, e, nativePath(j.Native.API), body)
	if err != nil {
		return nil, err
	}
	defer c.release(buf)
	if status != http.StatusOK {
		return nil, classify(status, header, buf.Bytes(), j.Model)
	}
	a := &Answer{Rendered: true, Replica: e.id}
	answer := rawjson.Trusted(buf.Bytes())
	return a, a.parseRendered(&answer)
}

// native asks the route of the body's own format, where the endpoint has one. Done is false when the chat
// form has to do. A refusal is no answer to the client: the generating route may take a body that this one does not.
func (p *Pool) native(ctx context.Context, e *endpoint, j *Job) (a *Answer, done bool, err error) {
	if j.Native == nil || support(e.native.Load()) == supportNo {
		return nil, false, nil
	}
	a, err = p.client.askNative(ctx, e, j)
	var f *Fault
	var refused *ClientFault
	switch {
	case err == nil:
		e.native.Store(int32(supportYes))
		return a, true, nil
	case errors.As(err, &refused):
		return nil, false, nil
	case errors.As(err, &f) && (f.Kind == KindUnsupported || f.Kind == KindMalformed && support(e.native.Load()) == supportUnknown):
		e.native.Store(int32(supportNo))
		return nil, false, nil
	}
	return nil, true, err
}
