package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/internal/reports"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// collector receives spans over OTLP as Jaeger does, and keeps them.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracepb.Span
	raw   strings.Builder // everything that came, as JSON
}

func (c *collector) Export(_ context.Context, in *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw.WriteString(protojson.Format(in))
	for _, r := range in.GetResourceSpans() {
		for _, s := range r.GetScopeSpans() {
			c.spans = append(c.spans, s.GetSpans()...)
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// startCollector serves a collector and returns the arguments that send every trace to it.
func startCollector(t *testing.T) (*collector, []string) {
	t.Helper()
	c, l, s := &collector{}, listen(t), grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(s, c)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Stop(); wg.Wait() })
	return c, []string{"--set", "telemetry.traces.endpoint=" + l.Addr().String(), "--set", "telemetry.traces.ratio=1"}
}

// newTrace makes a trace of a client's own and its header.
func newTrace(n int) (id, traceparent string) {
	id = fmt.Sprintf("4bf92f3577b34da6a3ce929d0e%06x", n)
	return id, "00-" + id + "-" + clientSpan + "-01"
}

// clientSpan is the span that the client of a test says it is in.
const clientSpan = "00f067aa0ba902b7"

// traceOf returns the spans of a trace once it is complete: its server span has ended.
func (f *fleet) traceOf(c *collector, id string) trace {
	f.t.Helper()
	var found trace
	f.eventually("the collector has trace "+id, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		found = nil
		whole := false
		for _, s := range c.spans {
			if hex.EncodeToString(s.GetTraceId()) == id {
				found = append(found, s)
				whole = whole || s.GetKind() == tracepb.Span_SPAN_KIND_SERVER
			}
		}
		return whole
	})
	for _, s := range found {
		for _, p := range found {
			if string(p.GetSpanId()) == string(s.GetParentSpanId()) && s.GetStartTimeUnixNano() < p.GetStartTimeUnixNano() {
				f.t.Errorf("%s begins %d ns before %s, which it is below", s.GetName(), p.GetStartTimeUnixNano()-s.GetStartTimeUnixNano(), p.GetName())
			}
		}
	}
	slices.SortFunc(found, func(a, b *tracepb.Span) int { return int(a.GetStartTimeUnixNano()) - int(b.GetStartTimeUnixNano()) })
	return found
}

// trace is one request's spans in the order in which they began.
type trace []*tracepb.Span

func (tr trace) named(name string) []*tracepb.Span {
	var list []*tracepb.Span
	for _, s := range tr {
		if s.GetName() == name {
			list = append(list, s)
		}
	}
	return list
}

// parent is the name of a span's parent, "client" for the client's own span.
func (tr trace) parent(s *tracepb.Span) string {
	for _, p := range tr {
		if string(p.GetSpanId()) == string(s.GetParentSpanId()) {
			return p.GetName()
		}
	}
	if hex.EncodeToString(s.GetParentSpanId()) == clientSpan {
		return "client"
	}
	return ""
}

func (tr trace) String() string {
	var b strings.Builder
	for _, s := range tr {
		fmt.Fprintf(&b, "%s below %q, %.3f ms %v\n", s.GetName(), tr.parent(s), float64(s.GetEndTimeUnixNano()-s.GetStartTimeUnixNano())/1e6, attributes(s.GetAttributes()))
	}
	return b.String()
}

// attributes makes texts of a span's or an event's attributes.
func attributes(list []*commonpb.KeyValue) map[string]string {
	m := map[string]string{}
	for _, a := range list {
		switch v := a.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			m[a.GetKey()] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			m[a.GetKey()] = fmt.Sprint(v.IntValue)
		case *commonpb.AnyValue_DoubleValue:
			m[a.GetKey()] = fmt.Sprint(v.DoubleValue)
		case *commonpb.AnyValue_BoolValue:
			m[a.GetKey()] = fmt.Sprint(v.BoolValue)
		default:
			m[a.GetKey()] = a.GetValue().String()
		}
	}
	return m
}

// event finds an event on a span.
func event(s *tracepb.Span, name string) (map[string]string, bool) {
	for _, e := range s.GetEvents() {
		if e.GetName() == name {
			return attributes(e.GetAttributes()), true
		}
	}
	return nil, false
}

func TestATraceHoldsEveryHop(t *testing.T) {
	t.Parallel()
	c, args := startCollector(t)
	f := startFleet(t, fleetOptions{replicas: 2, args: args})
	id, header := newTrace(1)
	a := f.post("/v1/chat/completions", conversation("hops", 3, `,"stream":true,"stream_options":{"include_usage":true}`), "traceparent", header)
	if a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	got := f.traceOf(c, id)
	c.mu.Lock()
	if !strings.Contains(c.raw.String(), scope.SchemaURL) {
		t.Errorf("no scope names the schema %s", scope.SchemaURL)
	}
	c.mu.Unlock()
	const root = "POST /v1/chat/completions"
	below := map[string]string{root: "client"}
	for _, name := range []string{"admit", "read", "tokenize", "score", "choose", "proxy", "release"} {
		below["kvpilot."+name] = root
	}
	below["kvpilot.tokenize.call"] = "kvpilot.tokenize"
	for _, name := range []string{"dial", "first_byte", "stream"} {
		below["kvpilot."+name] = "kvpilot.proxy"
	}
	for name, parent := range below {
		list := got.named(name)
		if len(list) != 1 {
			// a connection of the replica's tokenizer may have been kept from a probe; the request's own is new
			t.Errorf("%d spans %s, want one", len(list), name)
			continue
		}
		if p := got.parent(list[0]); p != parent {
			t.Errorf("%s is below %q, want %q", name, p, parent)
		}
	}
	want := map[string]map[string]string{
		root: {
			"gen_ai.operation.name": "chat", "gen_ai.request.model": "sim", "gen_ai.request.stream": "true", "gen_ai.usage.output_tokens": "4",
			"http.request.method": "POST", "http.route": "/v1/chat/completions", "http.response.status_code": "200", "url.scheme": "http",
			"url.path": "/v1/chat/completions", "network.protocol.version": "1.1",
			"kvpilot.replica.id": a.header.Get("X-Kvpilot-Replica"), "kvpilot.decision.id": a.header.Get("X-Kvpilot-Decision"),
		},
		"kvpilot.proxy": {
			"gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm", "server.address": "127.0.0.1", "http.response.status_code": "200",
			"kvpilot.attempt": "0", "kvpilot.connection.reused": "false",
		},
		"kvpilot.release": {"kvpilot.finished_by": "completed"},
	}
	for name, attrs := range want {
		for _, s := range got.named(name) {
			has := attributes(s.GetAttributes())
			for key, value := range attrs {
				if has[key] != value {
					t.Errorf("%s: %s = %q, want %q", name, key, has[key], value)
				}
			}
		}
	}
	for _, s := range got.named("kvpilot.proxy") {
		if _, ok := event(s, "kvpilot.first_token"); !ok {
			t.Error("the proxy span has no first token")
		}
		if has := attributes(s.GetAttributes()); has["url.full"] != "http://"+has["server.address"]+":"+has["server.port"]+"/v1/chat/completions" {
			t.Errorf("the proxy span says it called %q", has["url.full"])
		}
		if attributes(s.GetAttributes())["gen_ai.response.time_to_first_chunk"] == "" {
			t.Error("the proxy span does not say when the first token came")
		}
	}
	if t.Failed() {
		t.Logf("the trace:\n%s", got)
	}
}

func TestTheReplicaIsBelowTheSpanOfItsAttempt(t *testing.T) {
	t.Parallel()
	c, args := startCollector(t)
	f := startFleet(t, fleetOptions{replicas: 1, args: args})
	id, header := newTrace(2)
	if a := f.post("/v1/chat/completions", conversation("below", 1, ""), "traceparent", header); a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	proxy := f.traceOf(c, id).named("kvpilot.proxy")
	if len(proxy) != 1 {
		t.Fatalf("%d attempts", len(proxy))
	}
	want := "00-" + id + "-" + hex.EncodeToString(proxy[0].GetSpanId()) + "-01"
	for _, r := range f.engines[0].Requests() {
		if r.Path == "/v1/chat/completions" && r.Traceparent == want {
			return
		}
	}
	t.Errorf("the replica did not get %s: %+v", want, f.engines[0].Requests())
}

func TestAttemptsStandSideBySide(t *testing.T) {
	t.Parallel()
	c, args := startCollector(t)
	f := startFleet(t, fleetOptions{replicas: 2, args: args})
	f.engines[0].SetFaults(enginesim.Faults{Where: enginesim.Where{Paths: []string{"/v1/completions"}}, AnswerFaults: enginesim.AnswerFaults{Status: http.StatusServiceUnavailable}})
	var got trace
	for n := range 2 { // in turn: one of the two requests meets the fault first
		id, header := newTrace(n)
		a := f.post("/v1/completions", `{"model":"sim","prompt":"side by side","max_tokens":3}`, "traceparent", header, "X-Kvpilot-Policy", "round-robin")
		if a.status != http.StatusOK {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
		if tr := f.traceOf(c, id); len(tr.named("kvpilot.proxy")) == 2 {
			got = tr
		}
	}
	if got == nil {
		t.Fatal("no request was tried twice")
	}
	tries := got.named("kvpilot.proxy")
	for n, s := range tries {
		if p := got.parent(s); p != "POST /v1/completions" {
			t.Errorf("attempt %d is below %q", n, p)
		}
		if has := attributes(s.GetAttributes()); has["kvpilot.attempt"] != fmt.Sprint(n) {
			t.Errorf("attempt %d says it is %s", n, has["kvpilot.attempt"])
		}
	}
	if tries[0].GetStatus().GetCode() != tracepb.Status_STATUS_CODE_ERROR || tries[1].GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR {
		t.Errorf("statuses %v and %v", tries[0].GetStatus(), tries[1].GetStatus())
	}
	if e, ok := event(got.named("POST /v1/completions")[0], "kvpilot.retry"); !ok || e["kvpilot.reason"] != "unavailable" {
		t.Errorf("the retry is noted as %v", e)
	}
}

func TestWhatWasDoneInALesserWayIsNoted(t *testing.T) {
	t.Parallel()
	c, args := startCollector(t)
	f := startFleet(t, fleetOptions{replicas: 2, args: args})
	tokenizers := []string{"/tokenize", "/v1/completions/render", "/v1/chat/completions/render"}
	t.Run("no token ids", func(t *testing.T) {
		for _, e := range f.engines {
			e.SetFaults(enginesim.Faults{Where: enginesim.Where{Paths: tokenizers}, AnswerFaults: enginesim.AnswerFaults{Status: http.StatusInternalServerError}})
		}
		id, header := newTrace(100)
		if a := f.post("/v1/completions", `{"model":"sim","prompt":"nobody counts these words","max_tokens":3}`, "traceparent", header); a.status != http.StatusOK {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
		got := f.traceOf(c, id)
		e, ok := event(got.named("kvpilot.tokenize")[0], "kvpilot.fallback")
		if !ok || e["kvpilot.fallback"] != "tokenize" || e["kvpilot.reason"] == "" {
			t.Errorf("the fallback is noted as %v", e)
		}
		if s := got.named("kvpilot.tokenize.call"); len(s) != 1 || s[0].GetStatus().GetCode() != tracepb.Status_STATUS_CODE_ERROR {
			t.Errorf("the call that failed: %v", s)
		}
	})
	t.Run("a slow tokenizer", func(t *testing.T) {
		f.engines[0].SetFaults(enginesim.Faults{Where: enginesim.Where{Paths: tokenizers}, ConnectionFaults: enginesim.ConnectionFaults{Slow: enginesim.Duration(3 * time.Second)}})
		f.engines[1].SetFaults(enginesim.Faults{})
		for n := 101; n < 121; n++ {
			id, header := newTrace(n)
			f.post("/v1/completions", fmt.Sprintf(`{"model":"sim","prompt":"prompt number %d is new","max_tokens":3}`, n), "traceparent", header)
			for _, s := range f.traceOf(c, id).named("kvpilot.tokenize.call") {
				if e, ok := event(s, "kvpilot.hedge"); ok {
					if e["kvpilot.replica.id"] != "r1" {
						t.Errorf("the second question went to %q", e["kvpilot.replica.id"])
					}
					return
				}
			}
		}
		t.Error("no question was asked twice")
	})
}

func TestReportsLeadToTheDecision(t *testing.T) {
	t.Parallel()
	c, args := startCollector(t)
	f := startFleet(t, fleetOptions{replicas: 1, args: args})
	router, err := client.Dial(f.grpc)
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	rpc := router.Routing()
	trace := 200
	in := func() (string, context.Context) {
		trace++
		id, header := newTrace(trace)
		return id, client.WithHeaders(t.Context(), "traceparent", header)
	}
	choose := func() (string, string) {
		id, ctx := in()
		out, err := rpc.ChooseReplica(ctx, &kvpilotv1.ChooseReplicaRequest{Model: "sim", Prompt: &kvpilotv1.ChooseReplicaRequest_Text{Text: "whose report"}})
		if err != nil {
			t.Fatal(err)
		}
		return id, out.GetReservationId()
	}
	decided, reservation := choose()
	second, other := choose()
	traces := map[string]string{} // by report
	call := func(name string, do func(context.Context) error) {
		id, ctx := in()
		if err := do(ctx); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		traces[name] = id
	}
	for name, report := range map[string]*kvpilotv1.ReservationReport{
		"first_token": reports.FirstToken(reservation), "progress": reports.Progress(reservation, 3), "renew": reports.Renew(reservation),
	} {
		call(name, func(ctx context.Context) error {
			_, err := rpc.ReportReservation(ctx, report)
			return err
		})
	}
	call("release", func(ctx context.Context) error {
		_, err := rpc.ReportReservation(ctx, reports.Completed(reservation))
		return err
	})
	call("TrackReservation", func(ctx context.Context) error {
		stream, err := rpc.TrackReservation(ctx)
		if err != nil {
			return err
		}
		for range 3 {
			if err := stream.Send(reports.Renew(other)); err != nil {
				return err
			}
			if _, err := stream.Recv(); err != nil {
				return err
			}
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
		_, err = stream.Recv()
		if err.Error() == "EOF" {
			return nil
		}
		return err
	})
	for name, id := range traces {
		to, rpc := decided, "ReportReservation"
		if name == "TrackReservation" {
			to, rpc = second, name
		}
		target := f.traceOf(c, to).named("kvpilot.choose")[0]
		s := f.traceOf(c, id).named("kvpilot.v1.RoutingService/" + rpc)[0]
		if got := attributes(s.GetAttributes())["kvpilot.reservation.report"]; rpc != name && got != name {
			t.Errorf("the span of %s names the report %q", name, got)
		}
		if links := s.GetLinks(); len(links) != 1 || hex.EncodeToString(links[0].GetTraceId()) != to || string(links[0].GetSpanId()) != string(target.GetSpanId()) {
			t.Errorf("%s is linked to %v, want span %x of %s", name, links, target.GetSpanId(), to)
		}
	}
	for _, name := range []string{"kvpilot.tokenize", "kvpilot.score", "kvpilot.choose"} {
		if tr := f.traceOf(c, decided); len(tr.named(name)) != 1 || tr.parent(tr.named(name)[0]) != "kvpilot.v1.RoutingService/ChooseReplica" {
			t.Errorf("the decision's trace has no %s:\n%s", name, tr)
		}
	}
	_, ctx := in()
	explained, err := router.ExplainDecision(ctx, reservation)
	if err != nil || len(explained) != 1 || explained[0].GetTraceId() != decided {
		t.Errorf("explained: %v, %v; want trace %s", explained, err, decided)
	}
}

func TestNoTraceShowsWhatWasSaid(t *testing.T) {
	t.Parallel()
	c, args := startCollector(t)
	f := startFleet(t, fleetOptions{replicas: 1, args: append(args, "--set", "telemetry.log_level=debug")})
	const secret = "the heron sleeps at noon"
	var said []string // what the engine answered
	send := func(path, body string) {
		a := f.post(path, body)
		var v struct {
			Choices []struct {
				Text    string
				Message struct{ Content string }
			}
		}
		if json.Unmarshal(a.body, &v) == nil && len(v.Choices) > 0 {
			said = append(said, v.Choices[0].Text+v.Choices[0].Message.Content)
		}
	}
	chat := `"messages":[{"role":"user","content":"` + secret + `"}],"max_tokens":16`
	send("/v1/chat/completions", `{"model":"sim",`+chat+`}`)
	send("/v1/chat/completions", `{"model":"sim","stream":true,`+chat+`}`)
	send("/v1/completions", `{"model":"sim","prompt":"`+secret+`","max_tokens":16}`)
	send("/v1/completions", `{"model":"sim","prompt":["`+secret+`"],"max_tokens":-5}`)
	send("/v1/completions", `{"model":"sim","prompt":"`+secret+`","temperature":"`+secret+`"}`)
	send("/v1/completions", `{"model":"sim","prompt":"`+secret)
	send("/v1/completions", `{"model":"other","prompt":"`+secret+`"}`)
	send("/v1/embeddings", `{"model":"sim","input":"`+secret+`"}`)
	send("/kvpilot/v1/choose", `{"model":"sim","text":"`+secret+`"}`)
	for _, fault := range []enginesim.Faults{{AnswerFaults: enginesim.AnswerFaults{Status: http.StatusInternalServerError}}, {AnswerFaults: enginesim.AnswerFaults{WrongJSON: true}}, {ConnectionFaults: enginesim.ConnectionFaults{Cut: true}}, {ConnectionFaults: enginesim.ConnectionFaults{HalfBody: true}}} {
		f.engines[0].SetFaults(fault)
		send("/v1/chat/completions", `{"model":"sim",`+chat+`}`)
	}
	f.engines[0].SetFaults(enginesim.Faults{})
	id, header := newTrace(300)
	f.post("/v1/chat/completions", `{"model":"sim",`+chat+`}`, "traceparent", header)
	f.traceOf(c, id)
	f.stop() // what is still in the exporter's queue is sent now
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.spans) < 100 || len(said) < 2 {
		t.Fatalf("%d spans and %d answers came, not enough to tell", len(c.spans), len(said))
	}
	for _, text := range append(said, secret) {
		if len(text) < 10 {
			t.Fatalf("%q is too short to look for", text)
		}
		if at := strings.Index(c.raw.String(), text); at >= 0 {
			t.Errorf("the traces show %q: …%s…", text, c.raw.String()[max(0, at-200):at])
		}
		if strings.Contains(f.log.String(), text) {
			t.Errorf("the log shows %q", text)
		}
	}
}
