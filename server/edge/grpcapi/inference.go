package grpcapi

import (
	"context"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/observe/audit"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// inference passes bodies to the router and answers back.
type inference struct {
	kvpilotv1.UnimplementedInferenceServiceServer
	api *API
}

type (
	body   = httpbody.HttpBody
	bodies = grpc.ServerStreamingServer[httpbody.HttpBody]
)

// serve answers a raw call. A gRPC caller's path is the first of its method in the contract; a REST client has its own.
func (s *inference) serve(in *body, out bodies) error {
	path := ""
	if name, ok := grpc.MethodFromServerStream(out); ok {
		path = s.api.methods[name].path
	}
	call, err := s.api.call(out.Context(), http.MethodPost, path)
	if err != nil {
		return err
	}
	call.Body, call.ContentType = in.GetData(), contentType(out.Context(), in.GetContentType())
	to := sinkFor(out)
	return finish(to, s.api.Router.Serve(out.Context(), call, to))
}

// contentType is that of a body: the message's, else that in a REST client's header; a
// gRPC caller without one sends JSON.
func contentType(ctx context.Context, said string) string {
	if said == "" && httpcall.From(ctx) == nil {
		return "application/json"
	}
	return said
}

// The routes that send their body to one replica.

func (s *inference) ChatCompletions(in *body, out bodies) error         { return s.serve(in, out) }
func (s *inference) ChatCompletionsBatch(in *body, out bodies) error    { return s.serve(in, out) }
func (s *inference) Completions(in *body, out bodies) error             { return s.serve(in, out) }
func (s *inference) Responses(in *body, out bodies) error               { return s.serve(in, out) }
func (s *inference) Messages(in *body, out bodies) error                { return s.serve(in, out) }
func (s *inference) CountMessageTokens(in *body, out bodies) error      { return s.serve(in, out) }
func (s *inference) Generate(in *body, out bodies) error                { return s.serve(in, out) }
func (s *inference) Embeddings(in *body, out bodies) error              { return s.serve(in, out) }
func (s *inference) EmbedV2(in *body, out bodies) error                 { return s.serve(in, out) }
func (s *inference) Rerank(in *body, out bodies) error                  { return s.serve(in, out) }
func (s *inference) Score(in *body, out bodies) error                   { return s.serve(in, out) }
func (s *inference) Classify(in *body, out bodies) error                { return s.serve(in, out) }
func (s *inference) Pooling(in *body, out bodies) error                 { return s.serve(in, out) }
func (s *inference) AudioTranscriptions(in *body, out bodies) error     { return s.serve(in, out) }
func (s *inference) AudioTranslations(in *body, out bodies) error       { return s.serve(in, out) }
func (s *inference) RenderChatCompletions(in *body, out bodies) error   { return s.serve(in, out) }
func (s *inference) RenderCompletions(in *body, out bodies) error       { return s.serve(in, out) }
func (s *inference) RenderMessages(in *body, out bodies) error          { return s.serve(in, out) }
func (s *inference) RenderResponses(in *body, out bodies) error         { return s.serve(in, out) }
func (s *inference) CohereChat(in *body, out bodies) error              { return s.serve(in, out) }
func (s *inference) RenderCohereChat(in *body, out bodies) error        { return s.serve(in, out) }
func (s *inference) DerenderChatCompletions(in *body, out bodies) error { return s.serve(in, out) }
func (s *inference) DerenderCompletions(in *body, out bodies) error     { return s.serve(in, out) }
func (s *inference) TokenizeBody(in *body, out bodies) error            { return s.serve(in, out) }
func (s *inference) DetokenizeBody(in *body, out bodies) error          { return s.serve(in, out) }

func (s *inference) LoadAdapter(in *httpbody.HttpBody, out bodies) error {
	err := s.adapter(in, out, "/v1/load_lora_adapter")
	s.api.record(out.Context(), audit.LoadAdapter, kvpilotv1.InferenceService_LoadAdapter_FullMethodName, "", err)
	return err
}

func (s *inference) UnloadAdapter(in *httpbody.HttpBody, out bodies) error {
	err := s.adapter(in, out, "/v1/unload_lora_adapter")
	s.api.record(out.Context(), audit.UnloadAdapter, kvpilotv1.InferenceService_UnloadAdapter_FullMethodName, "", err)
	return err
}

// adapter answers a call that goes to every replica of a pool.
func (s *inference) adapter(in *httpbody.HttpBody, out bodies, path string) error {
	if err := s.api.mayLoadAdapters(); err != nil {
		return err
	}
	call, err := s.api.call(out.Context(), http.MethodPost, path)
	if err != nil {
		return err
	}
	call.Body, call.ContentType = in.GetData(), in.GetContentType()
	to := sinkFor(out)
	return finish(to, s.api.Router.Adapter(out.Context(), call, to))
}

// errNoUpgrade is what a call of Realtime meets that brings no connection to make a WebSocket of.
func errNoUpgrade() error {
	return apierror.New(apierror.NotSupported, "this route is a WebSocket: open it by an upgrade of an HTTP/1.1 connection (GET /v1/realtime with Connection: Upgrade, Upgrade: websocket)", nil, apierror.WithUpgrade())
}

func (s *inference) Realtime(in *kvpilotv1.RealtimeRequest, out bodies) error {
	e := httpcall.From(out.Context())
	if e == nil || e.Upgrade == nil {
		return errNoUpgrade()
	}
	call, err := s.api.call(out.Context(), http.MethodGet, "/v1/realtime")
	if err != nil {
		return err
	}
	return s.api.Router.Realtime(out.Context(), call, in.GetModel(), e.Upgrade)
}

func (s *inference) RetrieveResponse(in *kvpilotv1.RetrieveResponseRequest, out bodies) error {
	query := url.Values{}
	if in.Stream != nil {
		query.Set("stream", strconv.FormatBool(in.GetStream()))
	}
	if in.StartingAfter != nil {
		query.Set("starting_after", strconv.FormatInt(in.GetStartingAfter(), 10))
	}
	return s.stored(out, http.MethodGet, in.GetResponseId(), "", query.Encode())
}

func (s *inference) CancelResponse(in *kvpilotv1.CancelResponseRequest, out bodies) error {
	return s.stored(out, http.MethodPost, in.GetResponseId(), "/cancel", "")
}

// stored answers a call about a response that some replica holds.
func (s *inference) stored(out bodies, method, id, suffix, query string) error {
	if err := httpcall.CheckID(id); err != nil {
		return invalid("response_id", err.Error())
	}
	at := "/v1/responses/" + url.PathEscape(id) + suffix
	call, err := s.api.call(out.Context(), method, at)
	if err != nil {
		return err
	}
	call.Path = at // however a REST client escaped it
	call.Route = openai.RouteResponses
	if call.RawQuery == "" {
		call.RawQuery = query
	}
	to := sinkFor(out)
	return finish(to, s.api.Router.Stored(out.Context(), call, id, to))
}

func (s *inference) ListModels(context.Context, *kvpilotv1.ListModelsRequest) (*httpbody.HttpBody, error) {
	return &httpbody.HttpBody{ContentType: "application/json", Data: s.api.Router.Models()}, nil
}

func (s *inference) GetModel(_ context.Context, in *kvpilotv1.GetModelRequest) (*httpbody.HttpBody, error) {
	text, err := s.api.Router.Model(in.GetModel())
	if err != nil {
		return nil, err
	}
	return &httpbody.HttpBody{ContentType: "application/json", Data: text}, nil
}

func (s *inference) Forward(in *kvpilotv1.ForwardRequest, out bodies) error {
	who := s.api.caller(out.Context())
	if !s.api.Forward || guarded(in.GetPath(), who.By == caller.Open) {
		return apierror.New(apierror.RouteNotFound, "there is no such route", nil)
	}
	at, route, err := s.api.target(in, who)
	if err != nil {
		return err
	}
	method := in.GetMethod()
	if method == "" {
		method = http.MethodPost
	}
	call, err := s.api.call(out.Context(), method, at)
	if err != nil {
		return err
	}
	call.Path, call.Route, call.RawQuery = at, route, in.GetQuery()
	call.Body, call.ContentType = in.GetBody(), contentType(out.Context(), in.GetContentType())
	to := sinkFor(out)
	return finish(to, s.api.Router.Serve(out.Context(), call, to))
}

// target is where a forwarded call goes: a path that has one reading. The path of a method of its own is that method's route,
// and needs the roles of it.
func (a *API) target(in *kvpilotv1.ForwardRequest, who *caller.Caller) (at string, route openai.Route, err error) {
	at = in.GetPath()
	if err := httpcall.CheckPath(at); err != nil {
		return "", 0, invalid("path", err.Error())
	}
	if err := httpcall.CheckQuery(in.GetQuery()); err != nil {
		return "", 0, invalid("query", err.Error())
	}
	short := strings.TrimSuffix(at, "/")
	for name, m := range a.methods {
		if m.path == short && short != "" {
			if err := a.permit(who, name, m, origin{}); err != nil {
				return "", 0, err
			}
			at = short
		}
	}
	if route = openai.RouteOf(at); route == openai.RouteRealtime {
		return "", 0, errNoUpgrade()
	}
	return at, route, nil
}

// guarded reports whether a path, escaped in any way, has its own method, which checks owners and roles. Without credentials
// there are no owners.
func guarded(name string, open bool) bool {
	for range 3 { // engines unescape once; proxies before them may too
		plain, err := url.PathUnescape(name)
		if err != nil {
			return true
		}
		name = plain
	}
	name = strings.ToLower(path.Clean("/" + name))
	for _, root := range []string{"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/responses"} {
		if root == "/v1/responses" && open {
			continue
		}
		if rest, found := strings.CutPrefix(name, root); found && (rest == "" || rest[0] == '/' || rest[0] == '?' || rest[0] == '#') {
			return true
		}
	}
	return false
}
