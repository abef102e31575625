package gateway

import (
	"context"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/route/router"
)

// ServeHTTP answers one request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rq := &request{g: g, config: g.conf.Load(), w: w, control: http.NewResponseController(w), multiplexed: r.ProtoMajor > 1}
	if u := g.routes.trimSlash(r.URL); u != r.URL {
		r = r.WithContext(r.Context()) // the server's own copy stays as it came
		r.URL = u
	}
	rq.call.Call = router.Call{
		Method: r.Method, Path: r.URL.EscapedPath(), RawQuery: r.URL.RawQuery,
		Header: r.Header, RequestID: httpcall.RequestID(r.Header), Client: httpcall.Host(r.RemoteAddr), Received: time.Now(),
	}
	rq.call.Answer = (*answer)(rq)
	h := w.Header()
	h[httpcall.HeaderRequestID] = []string{rq.call.RequestID}
	if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
		// net/http silently drops a Content-Length next to a Transfer-Encoding, and what a proxy
		// before us made of the pair is unknown: such a connection is not used again.
		h.Set("Connection", "close")
	}
	if isHealth(r) {
		g.serveHealth(rq)
		return
	}
	found, params := g.routes.find(readMethod(r.Method), r.URL)
	if found != nil {
		rq.pattern, rq.params = found.pattern, params
		if params == nil {
			rq.call.Path = r.URL.Path // however the client escaped it
		}
	}
	ctx, s := g.startSpan(r, rq)
	g.metrics.begin()
	defer g.finish(rq, r, s)
	if serveFront(rq, r) {
		return
	}
	if g.cors.answer(h, r) || g.answerOptions(rq, r) {
		rq.start(http.StatusNoContent)
		return
	}
	rq.ctx = httpcall.With(ctx, &rq.call)
	switch {
	case !g.admit(rq, r, found) || !g.takeBody(rq, r, found):
	case found == nil:
		g.serveUnknown(rq, r)
	case found.raw:
		g.serveRaw(rq, found.rpc)
	default:
		g.serveTyped(rq, r)
	}
	if rq.status == 0 && rq.failed == nil {
		rq.fail(apierror.New(apierror.Internal, "internal error", errNoAnswer))
	}
	rq.linger()
}

// admit checks the sender of a request, before its body is read.
func (g *Gateway) admit(rq *request, r *http.Request, found *route) bool {
	g.expectBody(rq, r)
	err := checkTarget(r)
	if err == nil {
		err = g.checkOrigin(r, found)
	}
	if err == nil && g.senders != nil {
		rpc := ""
		if found != nil {
			rpc = found.rpc
		}
		rq.call.Caller, err = g.senders.Authorize(r, rq.call.RequestID, rpc)
	}
	if err == nil {
		err = rq.holding.open(g, rq, r)
	}
	if err != nil {
		rq.fail(apierror.From(err))
	}
	return err == nil
}

// takeBody reads the body, or leaves it to the handlers that read it while it arrives.
func (g *Gateway) takeBody(rq *request, r *http.Request, found *route) bool {
	var err error
	if found == nil || !found.live {
		rq.holding.expects(r)
	}
	switch {
	case found != nil && found.upgrade:
		err = g.takeUpgrade(rq, r)
	case readMethod(r.Method) == http.MethodGet: // a body, if there is one, is not read
	case found != nil && found.live:
		if err = checkType(r, false); err == nil {
			_ = rq.control.SetReadDeadline(time.Time{}) // it lasts as long as the answer
			_ = rq.control.EnableFullDuplex()           // HTTP/2 needs no asking
			rq.call.Mistakes = &httpcall.Mistakes{}
			rq.live = &liveBody{ReadCloser: r.Body, mistakes: rq.call.Mistakes, control: rq.control}
			rq.call.Live = rq.live
		}
	case found != nil && found.form:
		err = g.takeUpload(rq, r)
	default:
		if err = checkType(r, found == nil || found.opaque); err == nil {
			rq.body.contentType = r.Header.Get("Content-Type")
			rq.body.data, err = g.readBody(rq, r, g.bodyLimit(found, r.URL.Path))
		}
	}
	if err != nil {
		rq.fail(apierror.From(err))
	}
	return err == nil
}

// serveUnknown answers paths and methods that have no route.
func (g *Gateway) serveUnknown(rq *request, r *http.Request) {
	allowed := g.routes.allowed(r.URL)
	if r.URL.Path == healthPath {
		allowed = []string{http.MethodGet, http.MethodHead}
	}
	switch {
	case len(allowed) > 0:
		rq.w.Header().Set("Allow", strings.Join(allowed, ", "))
		rq.fail(apierror.New(apierror.MethodNotAllowed, "the method "+knownMethod(rq.call.Method)+" is not allowed here", nil))
	case !g.forwards || !strings.HasPrefix(r.URL.Path, "/"):
		rq.fail(apierror.New(apierror.RouteNotFound, "there is no route "+clip(rq.call.Path)+g.routes.hint(rq.call.Path), nil))
	default:
		if err := httpcall.CheckPath(rq.call.Path); err != nil {
			rq.fail(apierror.New(apierror.InvalidBody, err.Error(), nil))
			return
		}
		g.serveRaw(rq, kvpilotv1.InferenceService_Forward_FullMethodName)
	}
}

// carrier is a request's header as propagators read it: they ask for names that are not in their
// canonical form, which would be built again for each request.
type carrier struct{ propagation.HeaderCarrier }

// Get implements propagation.TextMapCarrier.
func (c carrier) Get(name string) string { return c.HeaderCarrier.Get(canonical(name)) }

// Values implements propagation.ValuesGetter.
func (c carrier) Values(name string) []string { return c.HeaderCarrier.Values(canonical(name)) }

func canonical(name string) string {
	switch name {
	case "traceparent":
		return "Traceparent"
	case "tracestate":
		return "Tracestate"
	case "baggage":
		return "Baggage"
	}
	return name
}

// startSpan begins the server span, as a child of the client's when it sent one.
func (g *Gateway) startSpan(r *http.Request, rq *request) (context.Context, trace.Span) {
	ctx := g.propagator.Extract(r.Context(), carrier{propagation.HeaderCarrier(r.Header)})
	return span.StartAt(ctx, g.tracer, spanName(knownMethod(rq.call.Method), rq.pattern), trace.SpanKindServer, trace.SpanID{}, rq.call.Received)
}

// spanName has few values, as OpenTelemetry's conventions want it: clients make up methods.
func spanName(method, pattern string) string {
	if method == otherMethod {
		method = "HTTP"
	}
	if pattern == "" {
		return method
	}
	return method + " " + pattern
}

// finish leaves the record of a request, and breaks the connection of an answer that is not whole.
func (g *Gateway) finish(rq *request, r *http.Request, s trace.Span) {
	v := recover()
	if rq.tunnel != nil {
		defer g.tunnels.drop(rq.tunnel)
	}
	rq.holding.close()
	if v != nil && rq.status == 0 {
		rq.status = http.StatusInternalServerError
	}
	g.metrics.end(rq)
	if s.IsRecording() {
		st := describe(rq, r)
		span.Leave(s, st, st.fault != "")
	}
	s.End()
	if v != nil {
		panic(v) // net/http knows what to do; only the record is ours
	}
	if rq.aborted {
		panic(http.ErrAbortHandler)
	}
}

// outcome is the status for the record: 499 if the client disconnected, also after a part of the answer was sent.
func (rq *request) outcome() int {
	if rq.failed != nil && rq.failed.Reason == apierror.Cancelled {
		return apierror.StatusClientClosed
	}
	return rq.status
}

// readMethod treats HEAD as GET: net/http leaves the body out.
func readMethod(method string) string {
	if method == http.MethodHead {
		return http.MethodGet
	}
	return method
}
