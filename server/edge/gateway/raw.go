package gateway

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// serveRaw calls the method that a raw route stands for, on the request's goroutine.
func (h *handlers) serveRaw(rq *request, rpc string) {
	defer func() { rq.out.alive.stop() }()
	var err error
	if h.streams(rpc) {
		err = h.callStream(rpc, (*raw)(rq))
	} else {
		var out any
		if out, err = h.callUnary(rq.ctx, rpc, rq.decode); err == nil {
			err = rq.reply(out)
		}
	}
	if err != nil {
		rq.fail(public(err))
	}
}

// raw is a request as the handler of a raw route sees it: the server's end of a stream that sends messages straight to
// the client, and the Sink that the router writes to.
type raw request

var (
	_ grpc.ServerStream = (*raw)(nil)
	_ intake.Sink       = (*raw)(nil)
	_ intake.Awaiter    = (*raw)(nil)
)

// Context implements grpc.ServerStream.
func (a *raw) Context() context.Context { return a.ctx }

// SetHeader implements grpc.ServerStream. A raw answer has the headers that Begin sets, and no trailer.
func (a *raw) SetHeader(metadata.MD) error { return nil }

// SendHeader implements grpc.ServerStream.
func (a *raw) SendHeader(metadata.MD) error { return nil }

// SetTrailer implements grpc.ServerStream.
func (a *raw) SetTrailer(metadata.MD) {}

// RecvMsg implements grpc.ServerStream: the one message is the request.
func (a *raw) RecvMsg(m any) error {
	if a.body.received {
		return io.EOF
	}
	return (*request)(a).decode(m)
}

// SendMsg implements grpc.ServerStream. It does not keep m. An error means that the client is gone.
func (a *raw) SendMsg(m any) error {
	body, ok := m.(*httpbody.HttpBody)
	if !ok {
		return status.Errorf(codes.Internal, "a raw route answers with %T", m)
	}
	if a.out.status == 0 {
		a.out.w.Header().Set("Content-Type", codec{}.ContentType(body))
		a.out.start(http.StatusOK)
	}
	return a.out.write(body.GetData())
}

// Await implements router.Awaiter.
func (a *raw) Await() { a.out.await(a.config.SSEKeepAlive) }

// Begin implements router.Sink. An answer behind a head that was sent early must agree with the head.
func (a *raw) Begin(status int, header http.Header) error {
	a.out.alive.lock()
	defer a.out.alive.unlock()
	switch {
	case a.out.alive.takeEarly():
		if status == http.StatusOK && isEvents(header.Get("Content-Type")) {
			return nil
		}
		(*request)(a).failLocked(apierror.New(apierror.UpstreamError, "the replica did not answer with a stream of events", nil))
		return errBegun
	case a.out.status != 0:
		return errBegun
	}
	h := a.out.w.Header()
	for name, values := range header {
		if !hopByHop(name) {
			h[name] = values
		}
	}
	a.out.start(status)
	return nil
}

// Write implements router.Sink.
func (a *raw) Write(p []byte) error {
	a.out.alive.lock()
	defer a.out.alive.unlock()
	if a.out.status == 0 {
		a.out.w.Header().Set("Content-Type", typeJSON)
		a.out.start(http.StatusOK)
	}
	return a.out.write(p)
}

// decode fills the message of a raw route: with the body itself, or with the variables of the path and the query.
func (rq *request) decode(v any) error {
	rq.body.received = true
	switch m := v.(type) {
	case *httpbody.HttpBody:
		m.ContentType, m.Data = rq.body.contentType, rq.body.data
	case *kvpilotv1.ForwardRequest:
		m.Method, m.Path, m.Query, m.ContentType, m.Body = rq.call.Method, rq.call.Path, rq.call.RawQuery, rq.body.contentType, rq.body.data
	case proto.Message:
		if err := rq.decodeURL(m); err != nil {
			return unreadable(err.Error(), err)
		}
	}
	return nil
}

func (rq *request) decodeURL(m proto.Message) error {
	if m.ProtoReflect().Descriptor().Fields().Len() > len(rq.routed.params) {
		query, err := url.ParseQuery(rq.call.RawQuery)
		if err != nil {
			return err
		}
		if err := runtime.PopulateQueryParameters(m, query, utilities.NewDoubleArray(nil)); err != nil {
			return err
		}
	}
	for name, value := range rq.routed.params {
		if err := runtime.PopulateFieldFromPath(m, name, value); err != nil {
			return err
		}
	}
	return nil
}

// reply answers with one message.
func (rq *request) reply(m any) error {
	text, err := codec{}.Marshal(m)
	if err != nil {
		return err
	}
	rq.out.whole(http.StatusOK, codec{}.ContentType(m), text)
	return nil
}
