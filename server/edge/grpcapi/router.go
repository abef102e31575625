package grpcapi

import (
	"context"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"

	"github.com/kvpilot/kvpilot/server/route/router"
)

// answering answers inference calls; *router.Router does.
type answering interface {
	Serve(ctx context.Context, call *router.Call, to router.Sink) error
	Stored(ctx context.Context, call *router.Call, id string, to router.Sink) error
	Adapter(ctx context.Context, call *router.Call, to router.Sink) error
	Realtime(ctx context.Context, call *router.Call, model string, up router.Upgrade) error
	Models() []byte
	Model(id string) ([]byte, error)
}

// choosing answers questions; *router.Router does.
type choosing interface {
	Choose(ctx context.Context, q *router.Question) (*router.Answer, error)
	Encode(ctx context.Context, q *router.Question) (*router.Answer, error)
	// Claimed reports whether a question of this name has a live booking here, or is getting one.
	Claimed(tenant, name string) bool
}

type (
	body   = httpbody.HttpBody
	bodies = grpc.ServerStreamingServer[httpbody.HttpBody]
)
