package grpcapi

import (
	"context"
	"net/http"
	"sync/atomic"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
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

// models lists what the router serves.
type models struct{ router answering }

func (s models) ListModels(context.Context, *kvpilotv1.ListModelsRequest) (*httpbody.HttpBody, error) {
	return &httpbody.HttpBody{ContentType: "application/json", Data: s.router.Models()}, nil
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
