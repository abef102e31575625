package grpcapi

import (
	"context"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync/atomic"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/observe/audit"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// inference is InferenceService: it passes bodies to the router and answers back.
type inference struct {
	kvpilotv1.UnsafeInferenceServiceServer
	*engineRoutes
	*responses
	*adapters
	*forwarding
	realtime
	models
}

func newInference(r answering, c calls, adm *admission, t trail, conf *atomic.Pointer[Config], forwards bool) *inference {
	engines := &engineRoutes{router: r, calls: c, methods: adm.methods}
	return &inference{
		engineRoutes: engines, responses: &responses{r, c}, adapters: &adapters{router: r, calls: c, callers: adm.callers, trail: t, conf: conf},
		forwarding: &forwarding{router: r, calls: c, admission: adm, enabled: forwards}, realtime: realtime{r, c}, models: models{r},
	}
}

// engineRoutes are the routes that send their body to one replica.
type engineRoutes struct {
	router  answering
	calls   calls
	methods map[string]*methodInfo
}

// serve answers a raw call. A gRPC caller's path is the first of its method in the contract; a REST client has its own.
func (s *engineRoutes) serve(in *body, out bodies) error {
	path := ""
	if name, ok := grpc.MethodFromServerStream(out); ok {
		path = s.methods[name].path
	}
	call, err := s.calls.raw(out.Context(), http.MethodPost, path)
	if err != nil {
		return err
	}
	call.Body, call.ContentType = in.GetData(), contentType(out.Context(), in.GetContentType())
	to := sinkFor(out)
	return finish(to, s.router.Serve(out.Context(), call, to))
}

func (s *engineRoutes) ChatCompletions(in *body, out bodies) error         { return s.serve(in, out) }
func (s *engineRoutes) ChatCompletionsBatch(in *body, out bodies) error    { return s.serve(in, out) }
func (s *engineRoutes) Completions(in *body, out bodies) error             { return s.serve(in, out) }
func (s *engineRoutes) Responses(in *body, out bodies) error               { return s.serve(in, out) }
func (s *engineRoutes) Messages(in *body, out bodies) error                { return s.serve(in, out) }
func (s *engineRoutes) CountMessageTokens(in *body, out bodies) error      { return s.serve(in, out) }
func (s *engineRoutes) Generate(in *body, out bodies) error                { return s.serve(in, out) }
func (s *engineRoutes) Embeddings(in *body, out bodies) error              { return s.serve(in, out) }
func (s *engineRoutes) EmbedV2(in *body, out bodies) error                 { return s.serve(in, out) }
func (s *engineRoutes) Rerank(in *body, out bodies) error                  { return s.serve(in, out) }
func (s *engineRoutes) Score(in *body, out bodies) error                   { return s.serve(in, out) }
func (s *engineRoutes) Classify(in *body, out bodies) error                { return s.serve(in, out) }
func (s *engineRoutes) Pooling(in *body, out bodies) error                 { return s.serve(in, out) }
func (s *engineRoutes) AudioTranscriptions(in *body, out bodies) error     { return s.serve(in, out) }
func (s *engineRoutes) AudioTranslations(in *body, out bodies) error       { return s.serve(in, out) }
func (s *engineRoutes) RenderChatCompletions(in *body, out bodies) error   { return s.serve(in, out) }
func (s *engineRoutes) RenderCompletions(in *body, out bodies) error       { return s.serve(in, out) }
func (s *engineRoutes) RenderMessages(in *body, out bodies) error          { return s.serve(in, out) }
func (s *engineRoutes) RenderResponses(in *body, out bodies) error         { return s.serve(in, out) }
func (s *engineRoutes) CohereChat(in *body, out bodies) error              { return s.serve(in, out) }
func (s *engineRoutes) RenderCohereChat(in *body, out bodies) error        { return s.serve(in, out) }
func (s *engineRoutes) DerenderChatCompletions(in *body, out bodies) error { return s.serve(in, out) }
func (s *engineRoutes) DerenderCompletions(in *body, out bodies) error     { return s.serve(in, out) }
func (s *engineRoutes) TokenizeBody(in *body, out bodies) error            { return s.serve(in, out) }
func (s *engineRoutes) DetokenizeBody(in *body, out bodies) error          { return s.serve(in, out) }

// models lists the models that the router serves.
type models struct{ router answering }

func (s models) ListModels(context.Context, *kvpilotv1.ListModelsRequest) (*httpbody.HttpBody, error) {
	text, err := s.router.Models()
	if err != nil {
		return nil, err
	}
	return &httpbody.HttpBody{ContentType: "application/json", Data: text}, nil
}

func (s models) GetModel(_ context.Context, in *kvpilotv1.GetModelRequest) (*httpbody.HttpBody, error) {
	text, err := s.router.Model(in.GetModel())
	if err != nil {
		return nil, err
	}
	return &httpbody.HttpBody{ContentType: "application/json", Data: text}, nil
}

// realtime opens WebSockets.
type realtime struct {
	router answering
	calls  calls
}

func (s realtime) Realtime(in *kvpilotv1.RealtimeRequest, out bodies) error {
	e := httpcall.From(out.Context())
	if e == nil || e.Upgrade == nil {
		return errNoUpgrade()
	}
	call, err := s.calls.raw(out.Context(), http.MethodGet, "/v1/realtime")
	if err != nil {
		return err
	}
	return s.router.Realtime(out.Context(), call, in.GetModel(), e.Upgrade)
}

// adapters loads and unloads LoRA adapters on every replica of a pool.
type adapters struct {
	router  answering
	calls   calls
	callers *callers.Callers
	trail   trail
	conf    *atomic.Pointer[Config]
}

func (s *adapters) LoadAdapter(in *httpbody.HttpBody, out bodies) error {
	err := s.adapter(in, out, "/v1/load_lora_adapter")
	s.trail.record(out.Context(), audit.LoadAdapter, kvpilotv1.InferenceService_LoadAdapter_FullMethodName, "", err)
	return err
}

func (s *adapters) UnloadAdapter(in *httpbody.HttpBody, out bodies) error {
	err := s.adapter(in, out, "/v1/unload_lora_adapter")
	s.trail.record(out.Context(), audit.UnloadAdapter, kvpilotv1.InferenceService_UnloadAdapter_FullMethodName, "", err)
	return err
}

// adapter answers a call that goes to every replica of a pool.
func (s *adapters) adapter(in *httpbody.HttpBody, out bodies, path string) error {
	if err := s.mayLoadAdapters(); err != nil {
		return err
	}
	call, err := s.calls.raw(out.Context(), http.MethodPost, path)
	if err != nil {
		return err
	}
	call.Body, call.ContentType = in.GetData(), in.GetContentType()
	to := sinkFor(out)
	return finish(to, s.router.Adapter(out.Context(), call, to))
}

// mayLoadAdapters rejects changes of all engines without credentials unless the operator allows them.
func (s *adapters) mayLoadAdapters() error {
	if !s.callers.Open() || s.conf.Load().OpenAdapters {
		return nil
	}
	return apierror.New(apierror.PermissionDenied, "adapters are loaded and unloaded by callers with the role admin, and this router has no credentials: set api.keys, or api.open_adapters", nil)
}

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

// forwarding passes on paths that the contract does not have.
type forwarding struct {
	router    answering
	calls     calls
	admission *admission
	enabled   bool
}

func (s *forwarding) Forward(in *kvpilotv1.ForwardRequest, out bodies) error {
	who := s.calls.senders.of(out.Context())
	if !s.enabled || guarded(in.GetPath(), who.By == caller.Open) {
		return apierror.New(apierror.RouteNotFound, "there is no such route", nil)
	}
	at, route, err := s.target(in, who)
	if err != nil {
		return err
	}
	method := in.GetMethod()
	if method == "" {
		method = http.MethodPost
	}
	call, err := s.calls.raw(out.Context(), method, at)
	if err != nil {
		return err
	}
	call.Path, call.Route, call.RawQuery = at, route, in.GetQuery()
	call.Body, call.ContentType = in.GetBody(), contentType(out.Context(), in.GetContentType())
	to := sinkFor(out)
	return finish(to, s.router.Serve(out.Context(), call, to))
}

// target is where a forwarded call goes: a path that has one reading. The path of a method of its own is that method's route,
// and needs the roles of it.
func (s *forwarding) target(in *kvpilotv1.ForwardRequest, who *caller.Caller) (at string, route openai.Route, err error) {
	at = in.GetPath()
	if err := httpcall.CheckPath(at); err != nil {
		return "", 0, invalid("path", err.Error())
	}
	if err := httpcall.CheckQuery(in.GetQuery()); err != nil {
		return "", 0, invalid("query", err.Error())
	}
	short := strings.TrimSuffix(at, "/")
	for name, m := range s.admission.methods {
		if m.path == short && short != "" {
			if err := s.admission.permit(who, name, m, origin{}); err != nil {
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
