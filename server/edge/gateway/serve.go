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
	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// ServeHTTP answers one request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	config := g.conf.Load()
	rq := &request{config: config, out: answer{
		client:  client{w: w, control: http.NewResponseController(w), stall: config.StallTimeout, multiplexed: r.ProtoMajor > 1},
		metrics: g.metrics,
	}}
	if u := g.routes.trimSlash(r.URL); u != r.URL {
		r = r.WithContext(r.Context()) // the server's own copy stays as it came
		r.URL = u
	}
	rq.call.Call = intake.Call{
		Method: r.Method, Path: r.URL.EscapedPath(), RawQuery: r.URL.RawQuery,
		Header: r.Header, RequestID: httpcall.RequestID(r.Header), Client: httpcall.Host(r.RemoteAddr), Received: time.Now(),
	}
	rq.call.Answer = (*raw)(rq)
	h := w.Header()
	h[httpcall.HeaderRequestID] = []string{rq.call.RequestID}
	if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
		// net/http silently drops a Content-Length next to a Transfer-Encoding, and the reading of the pair by a proxy before us is unknown:
		// such a connection is not used again.
		h.Set("Connection", "close")
	}
	if isHealth(r) {
		serveHealth(rq, g.health)
		return
	}
	rq.routed = g.routes.find(readMethod(r.Method), r.URL)
	if rq.routed.route != nil && rq.routed.params == nil {
		rq.call.Path = r.URL.Path // however the client escaped it
	}
	ctx, s := g.startSpan(r, rq)
	g.metrics.begin()
	defer g.finish(rq, r, s)
	if serveFront(rq, r) {
		return
	}
	if g.origins.answer(h, r) || g.answerOptions(rq, r) {
		rq.out.start(http.StatusNoContent)
		return
	}
	rq.ctx = httpcall.With(ctx, &rq.call)
	switch to := rq.routed.route; {
	case !g.admit(rq, r) || !g.takeBody(rq, r):
	case to == nil:
		g.serveUnknown(rq, r)
	case to.raw:
		g.handlers.serveRaw(rq, to.rpc)
	default:
		serveTyped(g.typed, rq, r)
	}
	if rq.out.status == 0 && rq.out.failed == nil {
		rq.fail(apierror.New(apierror.Internal, "internal error", errNoAnswer))
	}
	rq.linger()
}

// answerOptions lists the methods of a path that has a route; it leaves other paths alone.
func (g *Gateway) answerOptions(rq *request, r *http.Request) bool {
	if r.Method != http.MethodOptions {
		return false
	}
	allowed := g.routes.allowed(r.URL)
	if len(allowed) == 0 {
		return false
	}
	rq.out.w.Header().Set("Allow", strings.Join(append(allowed, http.MethodOptions), ", "))
	return true
}

// admit checks the sender of a request, before its body is read.
func (g *Gateway) admit(rq *request, r *http.Request) bool {
	rq.expectBody(r)
	err := checkTarget(r)
	if err == nil {
		err = g.origins.check(r, rq.routed.takes())
	}
	if err == nil && g.senders != nil {
		rq.call.Caller, err = g.senders.Authorize(r, rq.call.RequestID, rq.routed.rpc())
	}
	if err == nil {
		sender := guard.Sender(rq.call.Caller, ledger.ConnFrom(r.Context()), rq.call.Client)
		if g.senders == nil {
			sender.Open, sender.Nameless = true, false
		}
		rq.call.Account = &rq.holding.account
		err = rq.holding.open(r.Context(), g.ledger, sender)
	}
	if err != nil {
		rq.fail(apierror.From(err))
	}
	return err == nil
}

// takeBody reads the body, or leaves it to the handlers that read it while it arrives.
func (g *Gateway) takeBody(rq *request, r *http.Request) bool {
	var err error
	takes := rq.routed.takes()
	if takes != takesLive {
		rq.holding.expects(r)
	}
	switch {
	case takes == takesUpgrade:
		err = g.tunnels.takeUpgrade(rq, r)
	case readMethod(r.Method) == http.MethodGet: // a body, if there is one, is not read
	case takes == takesLive:
		if err = checkType(r, false); err == nil {
			rq.takeLive(r)
		}
	case takes == takesForm:
		err = rq.takeUpload(r)
	default:
		if err = checkType(r, takes == takesAny); err == nil {
			rq.body.contentType = r.Header.Get("Content-Type")
			rq.body.data, err = rq.readBody(r, g.bodyLimit(rq.routed.route, r.URL.Path))
		}
	}
	if err != nil {
		rq.fail(apierror.From(err))
	}
	return err == nil
}

// bodyLimit is the size that a route's body may have: at most the size of the largest one that the ledger can ever hold, with the copy
// that is made when it grows.
func (g *Gateway) bodyLimit(to *route, path string) int64 {
	most := min(int64(g.conf.Load().MaxBodyBytes), g.ledger.Most(ledger.Body)/(bodyGrowth+1)*bodyGrowth)
	if to != nil && to.small || to == nil && strings.HasPrefix(path, "/kvpilot/") {
		return min(smallBody, most)
	}
	return most
}

// serveUnknown answers paths and methods that have no route.
func (g *Gateway) serveUnknown(rq *request, r *http.Request) {
	allowed := g.routes.allowed(r.URL)
	if r.URL.Path == healthPath {
		allowed = []string{http.MethodGet, http.MethodHead}
	}
	switch {
	case len(allowed) > 0:
		rq.out.w.Header().Set("Allow", strings.Join(allowed, ", "))
		rq.fail(apierror.New(apierror.MethodNotAllowed, "the method "+knownMethod(rq.call.Method)+" is not allowed here", nil))
	case !g.forwards || !strings.HasPrefix(r.URL.Path, "/"):
		rq.fail(apierror.New(apierror.RouteNotFound, "there is no route "+clip(rq.call.Path)+g.routes.hint(rq.call.Path), nil))
	default:
		if err := httpcall.CheckPath(rq.call.Path); err != nil {
			rq.fail(apierror.New(apierror.InvalidBody, err.Error(), nil))
			return
		}
		g.handlers.serveRaw(rq, kvpilotv1.InferenceService_Forward_FullMethodName)
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
	return span.StartAt(ctx, g.tracer, spanName(knownMethod(rq.call.Method), rq.routed.pattern), trace.SpanKindServer, trace.SpanID{}, rq.call.Received)
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
	if v != nil && rq.out.status == 0 {
		rq.out.status = http.StatusInternalServerError
	}
	g.metrics.end(labelKey{knownMethod(rq.call.Method), rq.routed.pattern, rq.out.outcome()}, rq.call.Received)
	if s.IsRecording() {
		st := describe(rq, r)
		span.Leave(s, st, st.fault != "")
	}
	s.End()
	if v != nil {
		panic(v) // net/http knows what to do; only the record is ours
	}
	if rq.out.aborted {
		panic(http.ErrAbortHandler)
	}
}
