package grpcapi

import (
	"net/http"
	"net/url"
	"strconv"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// responses are the calls about a response that some replica holds.
type responses struct {
	router answering
	calls  calls
}

func (s *responses) RetrieveResponse(in *kvpilotv1.RetrieveResponseRequest, out bodies) error {
	query := url.Values{}
	if in.Stream != nil {
		query.Set("stream", strconv.FormatBool(in.GetStream()))
	}
	if in.StartingAfter != nil {
		query.Set("starting_after", strconv.FormatInt(in.GetStartingAfter(), 10))
	}
	return s.stored(out, http.MethodGet, in.GetResponseId(), "", query.Encode())
}

func (s *responses) CancelResponse(in *kvpilotv1.CancelResponseRequest, out bodies) error {
	return s.stored(out, http.MethodPost, in.GetResponseId(), "/cancel", "")
}

// stored answers a call about a response that some replica holds.
func (s *responses) stored(out bodies, method, id, suffix, query string) error {
	if err := httpcall.CheckID(id); err != nil {
		return invalid("response_id", err.Error())
	}
	at := "/v1/responses/" + url.PathEscape(id) + suffix
	call, err := s.calls.raw(out.Context(), method, at)
	if err != nil {
		return err
	}
	call.Path = at // however a REST client escaped it
	call.Route = openai.RouteResponses
	if call.RawQuery == "" {
		call.RawQuery = query
	}
	to := sinkFor(out)
	return finish(to, s.router.Stored(out.Context(), call, id, to))
}
