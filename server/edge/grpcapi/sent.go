package grpcapi

import (
	"context"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// headers are a REST client's headers, or a gRPC client's metadata in the same form.
func headers(ctx context.Context) http.Header {
	if e := httpcall.From(ctx); e != nil {
		return e.Header
	}
	md, _ := metadata.FromIncomingContext(ctx)
	h := make(http.Header, len(md))
	for key, values := range md {
		if key == "" || key[0] == ':' || transportKey(key) {
			continue
		}
		h[http.CanonicalHeaderKey(key)] = values
	}
	return h
}

// transportKey reports metadata that belongs to gRPC itself.
func transportKey(key string) bool {
	switch key {
	case "content-type", "te", "user-agent", "host", "connection":
		return true
	}
	return strings.HasPrefix(key, "grpc-") || strings.HasSuffix(key, "-bin")
}

// sent returns the parts of a call beyond its message: a REST client's request, or a gRPC caller's metadata.
func sent(ctx context.Context) *intake.Call {
	if e := httpcall.From(ctx); e != nil {
		return &e.Call
	}
	h := headers(ctx)
	return &intake.Call{Header: h, RequestID: httpcall.RequestID(h), Client: clientOf(ctx), Received: time.Now()}
}

// origin is where a call came from, for the audit log.
type origin struct{ address, requestID string }

func originOf(ctx context.Context) origin {
	if e := httpcall.From(ctx); e != nil {
		return origin{e.Client, e.RequestID}
	}
	md, _ := metadata.FromIncomingContext(ctx)
	if p := passedOn(ctx); p != nil {
		return origin{p.address, single(md, "x-request-id")}
	}
	return origin{clientOf(ctx), single(md, "x-request-id")}
}

// clientOf is the address that a call came from, without its port.
func clientOf(ctx context.Context) string {
	if e := httpcall.From(ctx); e != nil {
		return e.Client
	}
	if p, ok := peer.FromContext(ctx); ok {
		return httpcall.Host(p.Addr.String())
	}
	return ""
}

func single(md metadata.MD, name string) string {
	if v := md[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// passed is a call that another router of the fleet has passed on.
type passed struct {
	caller  *caller.Caller
	address string
}

type passedKey struct{}

// passedOn returns another router's statement about the call that it passed on; nil for a call of a client.
func passedOn(ctx context.Context) *passed {
	p, _ := ctx.Value(passedKey{}).(*passed)
	return p
}

// contentType is a body's type: the message's, else the type in a REST client's header; a
// gRPC caller without one sends JSON.
func contentType(ctx context.Context, said string) string {
	if said == "" && httpcall.From(ctx) == nil {
		return "application/json"
	}
	return said
}
