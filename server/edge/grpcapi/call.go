package grpcapi

import (
	"context"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/direct"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// calls makes the calls to the router.
type calls struct {
	senders   *senders
	overrides overrides
}

// raw describes a raw call to the router: as the REST client sent it, or with the route's own
// path for a gRPC caller.
func (c calls) raw(ctx context.Context, method, path string) (*intake.Call, error) {
	out := sent(ctx)
	if out.Method == "" { // of a gRPC caller
		out.Method, out.Path = method, path
	}
	who := c.senders.of(ctx)
	out.Tenant, out.ShowOverlap, out.Steers = who.Tenant, who.May(caller.Observe), who.May(caller.Steer)
	out.Route = openai.RouteOf(out.Path)
	var err error
	out.Options, err = c.overrides.fromHeader(out.Header)
	return out, err
}

// question begins a question to the router.
func (c calls) question(ctx context.Context) *intake.Question {
	call, who := sent(ctx), c.senders.of(ctx)
	return &intake.Question{
		Header: call.Header, RequestID: call.RequestID, Received: call.Received,
		Caller: intake.Caller{Tenant: who.Tenant, ShowOverlap: who.May(caller.Observe), Steers: who.May(caller.Steer)}, Options: chooser.Options{PinnedRank: -1},
	}
}

func setBody(q *intake.Question, b *kvpilotv1.RequestBody) {
	q.Body, q.Truncated = b.GetJson(), b.GetTruncated()
	switch b.GetApi() {
	case kvpilotv1.ApiKind_API_KIND_CHAT_COMPLETIONS:
		q.Route = openai.RouteChat
	case kvpilotv1.ApiKind_API_KIND_COMPLETIONS:
		q.Route = openai.RouteCompletions
	case kvpilotv1.ApiKind_API_KIND_RESPONSES:
		q.Route = openai.RouteResponses
	case kvpilotv1.ApiKind_API_KIND_MESSAGES:
		q.Route = openai.RouteMessages
	case kvpilotv1.ApiKind_API_KIND_UNSPECIFIED:
		q.Route = openai.RouteAny
	}
}

// answering answers inference calls; *router.Router does.
type answering interface {
	Serve(ctx context.Context, call *intake.Call, to intake.Sink) error
	Stored(ctx context.Context, call *intake.Call, id string, to intake.Sink) error
	Adapter(ctx context.Context, call *intake.Call, to intake.Sink) error
	Realtime(ctx context.Context, call *intake.Call, model string, up direct.Upgrade) error
	Models() ([]byte, error)
	Model(id string) ([]byte, error)
}

// choosing answers questions; *router.Router does.
type choosing interface {
	Choose(ctx context.Context, q *intake.Question) (*router.Answer, error)
	Encode(ctx context.Context, q *intake.Question) (*router.Answer, error)
	// Claimed reports whether a question of this name has a live booking here, or is getting one.
	Claimed(tenant, name string) bool
}

type (
	body   = httpbody.HttpBody
	bodies = grpc.ServerStreamingServer[httpbody.HttpBody]
)
