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
	"github.com/kvpilot/kvpilot/server/edge/inproc"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// call describes a raw call to the router: as the REST client sent it, or with the route's own
// path for a gRPC caller.
func (a *API) call(ctx context.Context, method, path string) (*router.Call, error) {
	c := &router.Call{}
	if e := inproc.FromContext(ctx); e != nil {
		c.Method, c.Path, c.RawQuery = e.Method, e.Path, e.RawQuery
		c.Header, c.RequestID, c.Received, c.Tenant = e.Header, e.RequestID, e.Received, a.tenant(ctx)
	} else {
		h := headers(ctx)
		c.Method, c.Path = method, path
		c.Header, c.RequestID, c.Received, c.Tenant = h, inproc.RequestID(h), time.Now(), a.tenant(ctx)
	}
	c.Client = clientOf(ctx)
	c.ShowOverlap = a.observes(ctx)
	c.Route = openai.RouteOf(c.Path)
	var err error
	c.Options, err = a.options(c.Header)
	return c, err
}

// sink takes the router's answer to the door that the call came through.
type sink struct {
	out grpc.ServerStream
	// answer is the REST client's; nil behind the gRPC door.
	answer inproc.Answer
	// message is used again for each piece of a REST answer.
	message     httpbody.HttpBody
	contentType string
	begun, sent bool
}

func newSink(out grpc.ServerStream) *sink {
	s := &sink{out: out}
	if e := inproc.FromContext(out.Context()); e != nil {
		s.answer = e.Answer
	}
	return s
}

// Begin implements router.Sink.
func (s *sink) Begin(status int, header http.Header) error {
	s.begun = true
	if s.answer != nil {
		return s.answer.Begin(status, header)
	}
	s.contentType = header.Get("Content-Type")
	md := metadata.MD{}
	if status != http.StatusOK {
		md.Set("x-http-status", strconv.Itoa(status))
	}
	for name, values := range header {
		if name == inproc.HeaderRequestID || strings.HasPrefix(name, "X-Kvpilot-") || strings.HasPrefix(name, "X-Ratelimit-") {
			md[strings.ToLower(name)] = values
		}
	}
	return s.out.SetHeader(md)
}

// Write implements router.Sink.
func (s *sink) Write(p []byte) error {
	if s.answer != nil {
		s.message.Data = p
		return s.answer.Message(&s.message) // as the stream's SendMsg would, without the layers between
	}
	// grpc-go has encoded the message when SendMsg returns; instruments may look at it later, so each
	// piece gets a message of its own.
	m := &httpbody.HttpBody{Data: p}
	if !s.sent {
		m.ContentType, s.sent = s.contentType, true
	}
	return s.out.SendMsg(m)
}

// end completes the answer: a gRPC caller gets one message even when the body is empty.
func (s *sink) end(err error) error {
	if err == nil && s.answer == nil && s.begun && !s.sent {
		return s.Write(nil)
	}
	return err
}

func invalid(param, message string) error {
	return apierror.New(apierror.InvalidBody, message, nil, apierror.WithParam(param))
}
