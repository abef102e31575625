package grpcapi

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// call describes a raw call to the router: as the REST client sent it, or with the route's own
// path for a gRPC caller.
func (a *API) call(ctx context.Context, method, path string) (*router.Call, error) {
	c := sent(ctx)
	if c.Method == "" { // of a gRPC caller
		c.Method, c.Path = method, path
	}
	who := a.caller(ctx)
	c.Tenant, c.ShowOverlap, c.Steers = who.Tenant, who.May(caller.Observe), who.May(caller.Steer)
	c.Route = openai.RouteOf(c.Path)
	var err error
	c.Options, err = a.options(c.Header)
	return c, err
}

// sent returns what a call carries in addition to its message: a REST client's request, or a gRPC caller's metadata.
func sent(ctx context.Context) *router.Call {
	if e := httpcall.From(ctx); e != nil {
		return &e.Call
	}
	h := headers(ctx)
	return &router.Call{Header: h, RequestID: httpcall.RequestID(h), Client: clientOf(ctx), Received: time.Now()}
}

// sinkFor takes the router's answer to the caller: a REST client itself, or a stream of messages.
func sinkFor(out grpc.ServerStream) router.Sink {
	if e := httpcall.From(out.Context()); e != nil {
		return e.Answer
	}
	return &messages{out: out}
}

// finish completes an answer: a gRPC caller gets one message even when the body is empty.
func finish(to router.Sink, err error) error {
	if m, ok := to.(*messages); ok && err == nil && m.begun && !m.sent {
		return m.Write(nil)
	}
	return err
}

// messages is the Sink of a gRPC caller.
type messages struct {
	out         grpc.ServerStream
	contentType string
	begun, sent bool
}

var _ router.Sink = (*messages)(nil)

// Begin implements router.Sink.
func (s *messages) Begin(status int, header http.Header) error {
	s.begun = true
	s.contentType = header.Get("Content-Type")
	md := metadata.MD{}
	if status != http.StatusOK {
		md.Set("x-http-status", strconv.Itoa(status))
	}
	for name, values := range header {
		if name == httpcall.HeaderRequestID || strings.HasPrefix(name, "X-Kvpilot-") || strings.HasPrefix(name, "X-Ratelimit-") {
			md[strings.ToLower(name)] = values
		}
	}
	return s.out.SetHeader(md)
}

// Write implements router.Sink.
func (s *messages) Write(p []byte) error {
	// grpc-go has encoded the message when SendMsg returns; instruments may look at it later, so each
	// piece gets a message of its own.
	m := &httpbody.HttpBody{Data: p}
	if !s.sent {
		m.ContentType, s.sent = s.contentType, true
	}
	return s.out.SendMsg(m)
}

// invalid is the error of a header or a field. The message names it too: gRPC clients print the message alone.
func invalid(param, message string) error {
	return apierror.New(apierror.InvalidBody, param+": "+message, nil, apierror.WithParam(param))
}
