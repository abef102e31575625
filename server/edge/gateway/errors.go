package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

var errNoAnswer = errors.New("the handler ended without an answer")

// onError renders an error of a unary call, or of the generated code before it.
func (g *Gateway) onError(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, _ *http.Request, err error) {
	if rq := requestFrom(ctx); rq != nil {
		rq.fail(public(err))
		return
	}
	http.Error(w, "internal error", http.StatusInternalServerError) // no request of ours
}

// onStreamError renders an error of a stream. The status that it returns goes nowhere: the request
// takes no more bytes.
func (g *Gateway) onStreamError(ctx context.Context, err error) *status.Status {
	if rq := requestFrom(ctx); rq != nil {
		rq.fail(public(err))
	}
	return status.New(codes.Internal, "internal error")
}

// onRoutingError answers paths and methods that have no route.
func (g *Gateway) onRoutingError(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
	if isProbe(ctx) {
		return
	}
	rq := requestFrom(ctx)
	if rq == nil {
		http.Error(w, http.StatusText(code), code)
		return
	}
	if code == http.StatusMethodNotAllowed || len(g.routes.exact[r.URL.Path]) > 0 || r.URL.Path == healthPath {
		allowed := g.routes.allowed(g.mux, r.URL)
		if r.URL.Path == healthPath {
			allowed = []string{http.MethodGet, http.MethodHead}
		}
		if len(allowed) > 0 {
			rq.w.Header().Set("Allow", strings.Join(allowed, ", "))
		}
		rq.fail(apierror.New(apierror.MethodNotAllowed, "the method "+knownMethod(rq.exchange.Method)+" is not allowed here", nil))
		return
	}
	if g.forward && code == http.StatusNotFound {
		g.passOn(ctx, rq)
		return
	}
	rq.fail(apierror.New(apierror.RouteNotFound, "there is no route "+clip(rq.exchange.Path), nil))
}

// passOn hands a path that has no route to InferenceService.Forward.
func (g *Gateway) passOn(ctx context.Context, rq *request) {
	if ambiguous(rq.exchange.Path) {
		rq.fail(apierror.New(apierror.InvalidBody, "the path has an ambiguous escape", nil))
		return
	}
	rq.exchange.Answer = rq
	e := &rq.exchange
	stream, err := g.inference.Forward(ctx, &kvpilotv1.ForwardRequest{
		Method: e.Method, Path: e.Path, Query: e.RawQuery, ContentType: rq.body.contentType, Body: rq.body.data,
	})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		rq.fail(public(err))
	}
}

// public is the error to show. Errors of the services are public already; what is left is the
// generated code's own complaint about a body, a path or a query, whose text tells of nothing
// but the client's input.
func public(err error) *apierror.Error {
	e := apierror.From(err)
	if e.Reason != apierror.Internal {
		return e
	}
	st, ok := status.FromError(err)
	if _, ours := errors.AsType[*apierror.Error](err); ours || !ok || st.Code() != codes.InvalidArgument {
		return e
	}
	return unreadable(st.Message(), err)
}

// unreadable is the error for a body, a path or a query that is not what it should be.
func unreadable(message string, err error) *apierror.Error {
	message = strings.ReplaceAll(message, "\u00a0", " ") // protojson varies its spaces
	message = strings.TrimPrefix(message, "proto: ")
	if field, ok := fieldOf(message); ok {
		return apierror.New(apierror.InvalidBody, clip(message), err, apierror.WithParam(field))
	}
	return apierror.New(apierror.InvalidBody, clip(message), err)
}

// clip bounds text that came from a client.
func clip(text string) string {
	const longest = 300
	if len(text) > longest {
		return text[:longest] + "…"
	}
	return text
}

// otherMethod stands for all methods that are not HTTP's own, as OpenTelemetry's conventions have it.
const otherMethod = "_OTHER"

// knownMethod keeps invented methods out of metrics and spans.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return method
	}
	return otherMethod
}
