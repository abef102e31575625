package router

import (
	"context"
	"net/http"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/pins"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// responses knows which replica stores a response, and which tenant owns it.
type responses struct {
	pins     *pins.Pins
	fleet    FleetPins
	upstream *upstream.Client
}

// mayRead reports whether a stored response may be read, continued or cancelled by the caller. Engines check no owner: the id
// suffices.
func (s *responses) mayRead(ctx context.Context, rq *request, id string) bool {
	tenant := rq.call.Tenant
	_, owner := s.pinned(ctx, tenant, id)
	return owner == pins.OwnerSelf || owner == pins.OwnerUnknown && (tenant == "" || rq.set.UnownedResponses)
}

// check refuses a request that continues a response of another tenant, on any route, and one that would give
// its own response a name of the caller's choice: it could be another tenant's.
func (s *responses) check(ctx context.Context, rq *request) error {
	if rq.call.Tenant == "" || rq.parsed == nil {
		return nil
	}
	if id := rq.parsed.PreviousResponse; id != "" && !s.mayRead(ctx, rq, id) {
		return unknownResponse(id)
	}
	if rq.parsed.RequestID != "" && rq.call.Route == openai.RouteResponses {
		return apierror.New(apierror.InvalidBody, "must be left out where callers have keys: the engine names the response", nil, apierror.WithParam("request_id"))
	}
	return nil
}

// unknownResponse is what an engine says of a response that it does not have. One of another tenant is answered by the same
// bytes, and no engine is asked for either.
func unknownResponse(id string) *apierror.Error {
	type body struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Param   string `json:"param"`
		Code    int    `json:"code"`
	}
	text := mustJSON(struct {
		Error body `json:"error"`
	}{body{"Response with id '" + clip(id, 128) + "' not found.", "invalid_request_error", "response_id", http.StatusNotFound}})
	return apierror.Upstream(http.StatusNotFound, "application/json", text)
}
