package gateway

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
)

// newTypedMux mounts the generated handlers of the services with typed routes on a connection to the services.
func newTypedMux(to grpc.ClientConnInterface) (*runtime.ServeMux, error) {
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, codec{}),
		runtime.WithIncomingHeaderMatcher(noHeader),
		runtime.WithOutgoingHeaderMatcher(noHeader),
		runtime.WithOutgoingTrailerMatcher(noHeader),
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithDisablePathLengthFallback(),
		runtime.WithDisableChunkedEncoding(),
		runtime.WithWriteContentLength(),
		runtime.WithForwardResponseOption(openStream),
		runtime.WithErrorHandler(onError),
		runtime.WithStreamErrorHandler(onStreamError),
	)
	ctx := context.Background() // the handlers start nothing: it is not kept
	for _, err := range []error{
		kvpilotv1.RegisterRoutingServiceHandlerClient(ctx, mux, kvpilotv1.NewRoutingServiceClient(to)),
		kvpilotv1.RegisterReplicaServiceHandlerClient(ctx, mux, kvpilotv1.NewReplicaServiceClient(to)),
		kvpilotv1.RegisterRouterServiceHandlerClient(ctx, mux, kvpilotv1.NewRouterServiceClient(to)),
		kvpilotv1.RegisterConfigServiceHandlerClient(ctx, mux, kvpilotv1.NewConfigServiceClient(to)),
	} {
		if err != nil {
			return nil, fmt.Errorf("register the contract's routes: %w", err)
		}
	}
	return mux, nil
}

// noHeader passes no header as metadata, in either direction: handlers find the client's in its httpcall.Call.
func noHeader(string) (string, bool) { return "", false }

// typed is a request of a typed route as the generated handlers see it: their ResponseWriter, and the value of their context. Once
// an error was written, it takes no more bytes: grpc-gateway then writes an error of its own.
type typed struct {
	rq *request
	// streams are the handlers that run on goroutines of their own.
	streams sync.WaitGroup
}

var _ http.ResponseWriter = (*typed)(nil)

type typedKey struct{}

func typedFrom(ctx context.Context) *typed {
	t, _ := ctx.Value(typedKey{}).(*typed)
	return t
}

// serveTyped hands a request to the generated handler, which decodes the message and calls the service.
func serveTyped(mux *runtime.ServeMux, rq *request, r *http.Request) {
	t := &typed{rq: rq}
	// The generated code would copy headers into metadata, one by one; handlers find them in the Call.
	inner := r.WithContext(context.WithValue(rq.ctx, typedKey{}, t))
	inner.Method = readMethod(r.Method)
	inner.Header, inner.Host, inner.RemoteAddr = nil, "", ""
	inner.Body = &rq.body
	if rq.body.live != nil {
		inner.Body = rq.body.live
	}
	mux.ServeHTTP(t, inner)
	t.streams.Wait() // the generated handler has ended their context
	if wrong := rq.body.live.mistake(); wrong != nil {
		rq.fail(wrong)
	}
}

// Header implements http.ResponseWriter.
func (t *typed) Header() http.Header {
	if t.rq.out.failed != nil {
		return http.Header{}
	}
	return t.rq.out.w.Header()
}

// WriteHeader implements http.ResponseWriter.
func (t *typed) WriteHeader(status int) {
	if t.rq.out.status == 0 && t.rq.out.failed == nil {
		t.rq.out.start(status)
	}
}

// Write implements http.ResponseWriter.
func (t *typed) Write(p []byte) (int, error) {
	rq := t.rq
	if rq.out.failed != nil {
		return len(p), nil
	}
	if rq.out.status == 0 {
		if refused := rq.holdAnswer(len(p)); refused != nil {
			rq.fail(refused)
			return len(p), nil
		}
		rq.out.start(http.StatusOK)
	}
	if err := rq.writeWhole(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// FlushError is called by http.ResponseController after each message of a stream.
func (t *typed) FlushError() error {
	t.rq.out.extend()
	err := t.rq.out.control.Flush()
	t.rq.out.flushed()
	return err
}

// fail answers with the error of the handler, or with the generated code's own. A message that cannot be read comes first: the handler
// saw the stream end there.
func (t *typed) fail(err error) {
	e := t.rq.body.live.mistake()
	if e == nil {
		e = public(err)
	}
	t.rq.fail(e)
}

func onError(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, _ http.ResponseWriter, _ *http.Request, err error) {
	typedFrom(ctx).fail(err)
}

// onStreamError is onError for streams. The status that it returns is not sent: the request takes no more bytes.
func onStreamError(ctx context.Context, err error) *status.Status {
	typedFrom(ctx).fail(err)
	return status.New(codes.Internal, apierror.Name(apierror.Internal))
}

// openStream sends the header of a stream of messages when the stream is open; grpc-gateway would
// send it with the first message.
func openStream(ctx context.Context, _ http.ResponseWriter, m proto.Message) error {
	md, ok := runtime.ServerMetadataFromContext(ctx)
	out := &typedFrom(ctx).rq.out
	if m != nil || !ok || out.status != 0 || !httpcall.IsOpen(md.HeaderMD) {
		return nil
	}
	out.w.Header().Set("Content-Type", typeLines)
	out.start(http.StatusOK)
	return out.control.Flush()
}
