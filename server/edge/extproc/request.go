package extproc

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// request is the gateway's HTTP request.
type request struct {
	call intake.Call
	// checked is set when the sender showed credentials of kvpilot's.
	checked bool
	// status and failed are for the record.
	status int
	failed *apierror.Error
}

// newRequest reads a request's headers.
func newRequest(f fields, priority func(objective string) int) *request {
	path, query, _ := strings.Cut(f.pseudo[":path"], "?")
	h := f.header
	rq := &request{call: intake.Call{
		Method: cmp.Or(f.pseudo[":method"], http.MethodPost), Path: path, RawQuery: query, Header: h, Route: openai.RouteOf(path),
		RequestID: httpcall.RequestID(h), Client: clientOf(h), Received: time.Now(),
		Model:    first(h, "X-Llm-D-Model-Name-Rewrite", "X-Gateway-Model-Name-Rewrite"),
		Priority: priority(first(h, "X-Llm-D-Inference-Objective", "X-Gateway-Inference-Objective")),
	}}
	return rq
}

// first is the value of the first of the headers that is there.
func first(h http.Header, names ...string) string {
	for _, name := range names {
		if v := h[name]; len(v) > 0 && v[0] != "" {
			return v[0]
		}
	}
	return ""
}

// clientOf is the address that the gateway saw its client at: the last one of X-Forwarded-For.
func clientOf(h http.Header) string {
	list := h["X-Forwarded-For"]
	if len(list) == 0 {
		return ""
	}
	text := list[len(list)-1]
	return strings.TrimSpace(text[strings.LastIndexByte(text, ',')+1:])
}

// opaque reports whether the body, if there is one, says nothing about the choice and may not end before the answer: then the choice
// does not wait for it.
func (rq *request) opaque() bool {
	h := rq.call.Header
	return rq.call.Method == http.MethodGet || rq.call.Method == http.MethodHead || h.Get("Upgrade") != "" ||
		strings.HasPrefix(h.Get("Content-Type"), "application/grpc")
}

// rpc is the method whose roles the sender needs.
func (rq *request) rpc() string {
	const service = "/kvpilot.v1.InferenceService/"
	switch {
	case strings.HasSuffix(rq.call.Path, "_lora_adapter"):
		return service + "LoadAdapter"
	case rq.call.Route != openai.RouteOther, rq.call.Method == http.MethodGet, rq.call.Method == http.MethodHead:
		return service + "ChatCompletions"
	case strings.HasPrefix(rq.call.Path, openai.RouteResponses.Path()+"/"):
		return service + "Responses"
	}
	return service + "Forward"
}

// spanName has few values: clients make up methods and paths.
func (rq *request) spanName() string {
	method := rq.call.Method
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		method = "HTTP"
	}
	if path := rq.call.Route.Path(); path != "" {
		return method + " " + path
	}
	return method
}

// describe adds the HTTP request to its span.
func (rq *request) describe(s trace.Span) {
	if !s.IsRecording() {
		return
	}
	code := rq.status
	if rq.failed != nil {
		code = rq.failed.HTTPStatus()
	}
	span.Set(s, span.HTTPMethod.String(rq.call.Method), span.URLPath.String(rq.call.Path), span.RequestID.String(rq.call.RequestID))
	if code != 0 {
		span.Set(s, span.HTTPStatus.Int(code))
	}
	if path := rq.call.Route.Path(); path != "" {
		span.Set(s, span.HTTPRoute.String(path))
	}
	if e := rq.failed; e != nil && e.Fault() == apierror.FaultOurs {
		span.Fail(s, apierror.Name(e.Reason), e.OwnWords())
	}
}

// headerCarrier is a request's header as propagators read it.
func headerCarrier(h http.Header) propagation.TextMapCarrier { return propagation.HeaderCarrier(h) }

// requestCost is the fixed cost of a request under way: its goroutines and its records.
const requestCost = 24 << 10

// admit identifies the sender, and begins the account of what the request holds.
func (x *exchange) admit(ctx context.Context) error {
	p, call := &x.server.params, &x.request.call
	if err := httpcall.CheckBytes(call.Path); err != nil {
		return apierror.New(apierror.InvalidBody, err.Error(), err)
	}
	who, err := p.Senders.Authorize(x.asSent(), call.RequestID, x.request.rpc())
	if err != nil {
		return err
	}
	call.Caller = intake.Caller{Tenant: who.Tenant, ShowOverlap: who.May(caller.Observe), Steers: who.May(caller.Steer)}
	x.request.checked = who.By != caller.Open
	if who.By == caller.Open { // the gateway is the only caller: it may name tenants
		if name := first(call.Header, fairnessHeaders()...); name != "" && caller.CheckTenant(name) == nil {
			call.Tenant = name
		}
	}
	sender := guard.Sender(who, nil, call.Client)
	p.Ledger.Open(&x.account, sender)
	if err := x.account.TakeSoon(ctx, ledger.Stream, requestCost); err != nil {
		return guard.Refused(err)
	}
	if call.Options, err = p.Senders.RoutingOptions(call.Header); err != nil {
		return err
	}
	return nil
}

// fairnessHeaders name the tenant for gateways of the Gateway API Inference Extension; the first one counts.
func fairnessHeaders() []string {
	return []string{"X-Llm-D-Inference-Fairness-Id", "X-Gateway-Inference-Fairness-Id"}
}

// asSent is the HTTP request as its sender is identified by: with its own credentials, or with those of the gateway, which names the tenant.
func (x *exchange) asSent() *http.Request {
	call := &x.request.call
	r := &http.Request{Method: call.Method, Header: call.Header, RemoteAddr: remote(call.Client), URL: &url.URL{Path: call.Path, RawQuery: call.RawQuery}}
	md := x.metadata()
	key, auth := last(md, "x-api-key"), last(md, "authorization")
	if key == "" && auth == "" {
		return r
	}
	r.Header = http.Header{}
	for name, value := range map[string]string{
		"X-Api-Key": key, "Authorization": auth,
		x.server.params.TenantHeader: cmp.Or(call.Header.Get(x.server.params.TenantHeader), first(call.Header, fairnessHeaders()...)),
	} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	return r
}

func remote(client string) string {
	if client == "" {
		return ""
	}
	return "[" + strings.Trim(client, "[]") + "]:0"
}

func last(md metadata.MD, name string) string {
	if v := md[name]; len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}

// ask reads the request as far as the choice needs it, and names the gateway a replica.
func (x *exchange) ask(ctx context.Context, m *question, ended bool) error {
	x.body.whole = ended
	if err := x.admit(ctx); err != nil {
		return err
	}
	err := x.server.limit(ctx, m, &x.request.call)
	if err != nil {
		return err
	}
	switch {
	case ended || x.request.opaque() || !isDuplex(x.modes.request) && !isBuffered(x.modes.request):
		return x.choose(ctx, x.answerHead)
	case isBuffered(x.modes.request):
		if err := x.send(requestHeaders(nil)); err != nil { // Envoy sends the body then
			return err
		}
		if err := x.collect(ctx); err != nil {
			return err
		}
		return x.choose(ctx, x.answerBuffered)
	}
	if err := x.collect(ctx); err != nil {
		return err
	}
	return x.choose(ctx, x.answerDuplex)
}

// limit restricts the choice to the gateway's subset.
func (s *Server) limit(ctx context.Context, m *question, call *intake.Call) error {
	if !s.config.Subset {
		return nil
	}
	return s.endpoints.limit(ctx, s.params.Fleet.Snapshot(), m.GetMetadataContext(), &call.Options)
}

// choose has a replica chosen and names it to the gateway.
func (x *exchange) choose(ctx context.Context, answer func(naming) error) error {
	x.request.call.Body, x.request.call.Sidecars, x.request.call.Rewrites = x.body.data, x.server.config.Prefiller, x.server.params.Rewrites
	h, err := x.server.params.Router.HandOff(ctx, &x.request.call, x.sight)
	if err != nil {
		return err
	}
	x.handoff = h
	var list []string
	for _, r := range h.Replicas(x.server.config.Endpoints) {
		if at, ok := x.server.endpoints.of(ctx, r); ok {
			list = append(list, at)
		} else if len(list) == 0 {
			return apierror.New(apierror.NoReplica, "the chosen replica's name has no address", nil, apierror.WithRetryAfter(time.Second))
		}
	}
	addresses := strings.Join(list, ",")
	set := h.Header(ctx)
	set.Set(keyEndpoint, addresses)
	if by := h.Prefiller(); by != nil {
		if at, ok := x.server.endpoints.of(ctx, by); ok {
			set.Set(headerPrefiller, at)
		}
	}
	if err := answer(naming{set, x.request.withheld(set), addresses}); err != nil {
		return err
	}
	x.answered = true
	x.server.metrics.Questions.Add(resultSent)
	return nil
}

// headerPrefiller names the replica that computes the prompt, for llm-d's sidecar of the replica that gets the request.
const headerPrefiller = "X-Prefiller-Host-Port"

// withheld names the headers that the replica must not get: those of kvpilot, the client's credentials where they are kvpilot's, and
// what steers an engine or llm-d's sidecar where the sender may not.
func (rq *request) withheld(set http.Header) []string {
	var list []string
	for name := range rq.call.Header {
		plain := http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
		if _, replaced := set[name]; !replaced && rq.withholds(plain) {
			list = append(list, strings.ToLower(name))
		}
	}
	return list
}

func (rq *request) withholds(name string) bool {
	switch name {
	case "X-Data-Parallel-Rank", headerPrefiller, "X-Encoder-Hosts-Ports", "X-Kv-Cache-Source-Host-Port":
		return !rq.call.Steers
	case "Authorization", "X-Api-Key":
		return rq.checked
	case http.CanonicalHeaderKey(keyEndpoint):
		return true
	}
	return strings.HasPrefix(name, "X-Kvpilot-")
}
