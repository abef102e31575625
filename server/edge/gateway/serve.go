package gateway

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/inproc"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// ServeHTTP answers one request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rq := &request{g: g, config: g.conf.Load(), w: w, control: http.NewResponseController(w), multiplexed: r.ProtoMajor > 1}
	rq.flusher = flusherOf(w, rq.control)
	if u := g.routes.tidy(r.URL); u != r.URL {
		r = r.WithContext(r.Context()) // the server's own copy stays as it came
		r.URL = u
	}
	rq.exchange = inproc.Exchange{
		Method: r.Method, Path: r.URL.EscapedPath(), RawQuery: r.URL.RawQuery,
		Header: r.Header, RequestID: inproc.RequestID(r.Header), RemoteAddr: r.RemoteAddr, Received: time.Now(),
	}
	h := w.Header()
	h[inproc.HeaderRequestID] = []string{rq.exchange.RequestID}
	if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
		// net/http drops a Content-Length beside a Transfer-Encoding without a word, and what a proxy
		// before us made of the pair we cannot know: such a connection is not used again.
		h.Set("Connection", "close")
	}
	if isHealth(r) {
		g.serveHealth(rq)
		return
	}
	found := g.routes.find(readMethod(r.Method), r.URL.Path)
	if found != nil {
		rq.exchange.Path = r.URL.Path // however the client escaped it
	}
	rq.matched(found)

	ctx, s := g.startSpan(r, rq)
	g.metrics.begin()
	defer g.finish(rq, r, s)
	if r.URL.Path == openapiPath && readMethod(r.Method) == http.MethodGet {
		rq.pattern = openapiPath
		serveOpenAPI(rq)
		return
	}
	if g.cors.answer(h, r) || g.answerOptions(rq, r) {
		rq.start(http.StatusNoContent)
		return
	}
	g.route(ctx, rq, r, found)
	if rq.status == 0 && rq.failed == nil {
		rq.fail(apierror.New(apierror.Internal, "internal error", errNoAnswer))
	}
}

// route lets the caller in, reads the body and calls the generated handler.
func (g *Gateway) route(ctx context.Context, rq *request, r *http.Request, found *route) {
	g.expectBody(rq, r)
	if err := g.fromElsewhere(r, found); err != nil {
		rq.fail(apierror.From(err))
		return
	}
	if g.authorize != nil {
		rpc := ""
		if found != nil {
			rpc = found.rpc
		}
		var err error
		if rq.exchange.Caller, err = g.authorize(r, rq.exchange.RequestID, rpc); err != nil {
			rq.fail(apierror.From(err))
			return
		}
	}
	ctx = inproc.WithExchange(context.WithValue(ctx, requestKey{}, rq), &rq.exchange)
	inner := r.WithContext(ctx)
	inner.Method = readMethod(r.Method)
	// The generated code would copy headers into metadata, one by one; they ride in the Exchange.
	inner.Header, inner.Host, inner.RemoteAddr = nil, "", ""
	switch {
	case found != nil && found.upgrade && !g.takeUpgrade(rq, r):
		return
	case inner.Method == http.MethodGet:
		inner.Body = http.NoBody // the generated code would read it to its end, however long
	case found != nil && found.live:
		if err := acceptable(r, false); err != nil {
			rq.fail(apierror.From(err))
			return
		}
		_ = rq.control.SetReadDeadline(time.Time{}) // it lasts as long as the answer
		_ = rq.control.EnableFullDuplex()           // HTTP/2 needs no asking
		rq.exchange.Mistakes = &inproc.Mistakes{}
		rq.live = &liveBody{ReadCloser: r.Body, mistakes: rq.exchange.Mistakes}
		inner.Body = rq.live
	case found != nil && openai.RouteOf(found.pattern).TakesForm():
		if !g.takeUpload(rq, r, inner) {
			return
		}
	default:
		if !g.takeBody(rq, r, inner, found) {
			return
		}
	}
	if found != nil {
		found.handler(rq, inner, nil)
		if wrong := rq.live.mistake(); wrong != nil {
			rq.fail(wrong)
		}
		return
	}
	g.mux.ServeHTTP(rq, inner)
}

// takeBody reads the body and leaves it where the codec finds it.
func (g *Gateway) takeBody(rq *request, r, inner *http.Request, found *route) bool {
	if err := acceptable(r, found == nil || found.opaque); err != nil {
		rq.fail(apierror.From(err))
		return false
	}
	data, err := g.readBody(rq, r, g.bodyLimit(found, r.URL.Path))
	if err != nil {
		rq.fail(apierror.From(err))
		return false
	}
	rq.body = body{data: data, contentType: r.Header.Get("Content-Type")}
	inner.Body = &rq.body
	return true
}

// carrier is a request's header as propagators read it: they ask for names that are not in their
// canonical form, which would be made anew for each request.
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
	rq.named = rq.pattern
	return span.StartAt(ctx, g.tracer, spanName(knownMethod(rq.exchange.Method), rq.pattern), trace.SpanKindServer, trace.SpanID{}, rq.exchange.Received)
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
	g.budget.Give(rq.held)
	if v != nil && rq.status == 0 {
		rq.status = http.StatusInternalServerError
	}
	g.metrics.end(rq)
	if s.IsRecording() {
		st := tell(rq, r)
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

// outcome is the status for the record: 499 for a client that left, whatever was sent before.
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
