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
	"github.com/kvpilot/kvpilot/server/route/router"
)

// serveRaw calls the method that a raw route stands for, on the request's goroutine.
func (g *Gateway) serveRaw(rq *request, rpc string) {
	defer func() { rq.alive.stop() }()
	var err error
	if g.handlers.streams(rpc) {
		err = g.handlers.callStream(rpc, (*answer)(rq))
	} else {
		var out any
		if out, err = g.handlers.callUnary(rq.ctx, rpc, rq.decode); err == nil {
			err = rq.reply(out)
		}
	}
	if err != nil {
		rq.fail(public(err))
	}
}

// answer is a request as the handler of a raw route sees it: the server's end of a stream that sends messages straight to
// the client, and the Sink that the router writes to.
type answer request

var (
	_ grpc.ServerStream = (*answer)(nil)
	_ router.Sink       = (*answer)(nil)
	_ router.Awaiter    = (*answer)(nil)
)

// Context implements grpc.ServerStream.
func (a *answer) Context() context.Context { return a.ctx }

// SetHeader implements grpc.ServerStream. A raw answer has the headers that Begin sets, and no trailer.
func (a *answer) SetHeader(metadata.MD) error { return nil }

// SendHeader implements grpc.ServerStream.
func (a *answer) SendHeader(metadata.MD) error { return nil }

// SetTrailer implements grpc.ServerStream.
func (a *answer) SetTrailer(metadata.MD) {}

// RecvMsg implements grpc.ServerStream: the one message is the request.
func (a *answer) RecvMsg(m any) error {
	if a.received {
		return io.EOF
	}
	return (*request)(a).decode(m)
}

// SendMsg implements grpc.ServerStream. It does not keep m. An error means that the client is gone.
func (a *answer) SendMsg(m any) error {
	body, ok := m.(*httpbody.HttpBody)
	if !ok {
		return status.Errorf(codes.Internal, "a raw route answers with %T", m)
	}
	if a.status == 0 {
		a.w.Header().Set("Content-Type", codec{}.ContentType(body))
		(*request)(a).start(http.StatusOK)
	}
	return (*request)(a).write(body.GetData())
}

// Begin implements router.Sink.
func (a *answer) Begin(status int, header http.Header) error {
	a.alive.lock()
	defer a.alive.unlock()
	if a.alive != nil && a.alive.early {
		return a.alive.beginLate(status, header)
	}
	if a.status != 0 {
		return errBegun
	}
	h := a.w.Header()
	for name, values := range header {
		if !hopByHop(name) {
			h[name] = values
		}
	}
	(*request)(a).start(status)
	return nil
}

// Write implements router.Sink.
func (a *answer) Write(p []byte) error {
	a.alive.lock()
	defer a.alive.unlock()
	if a.status == 0 {
		a.w.Header().Set("Content-Type", typeJSON)
		(*request)(a).start(http.StatusOK)
	}
	return (*request)(a).write(p)
}

// decode fills the message of a raw route: with the body itself, or with the variables of the path and the query.
func (rq *request) decode(v any) error {
	rq.received = true
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
	if m.ProtoReflect().Descriptor().Fields().Len() > len(rq.params) {
		query, err := url.ParseQuery(rq.call.RawQuery)
		if err != nil {
			return err
		}
		if err := runtime.PopulateQueryParameters(m, query, utilities.NewDoubleArray(nil)); err != nil {
			return err
		}
	}
	for name, value := range rq.params {
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
	h := rq.w.Header()
	h.Set("Content-Type", codec{}.ContentType(m))
	h.Set("Content-Length", itoa(int64(len(text))))
	rq.start(http.StatusOK)
	_ = rq.write(text) // the client may be gone
	return nil
}
