package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/programs"
)

// jaegerConfig keeps traces in memory and listens on the three ports given.
const jaegerConfig = `
service:
  extensions: [jaeger_storage, jaeger_query]
  telemetry: {metrics: {level: none}}
  pipelines:
    traces: {receivers: [otlp], exporters: [jaeger_storage_exporter]}
extensions:
  jaeger_storage: {backends: {memory: {memory: {max_traces: 1000}}}}
  jaeger_query:
    storage: {traces: memory}
    http: {endpoint: "%s"}
    grpc: {endpoint: "%s"}
receivers:
  otlp: {protocols: {grpc: {endpoint: "%s"}}}
exporters:
  jaeger_storage_exporter: {trace_storage: memory}
`

// startJaeger runs the Jaeger that make test-jaeger built.
func startJaeger(t *testing.T) (query, otlp string) {
	t.Helper()
	binary := os.Getenv("KVPILOT_TEST_JAEGER")
	if binary == "" {
		t.Skip("no Jaeger: make test-jaeger builds one (7 minutes) and runs this test against it")
	}
	var ports [3]string
	for i := range ports {
		l := listen(t)
		ports[i] = l.Addr().String()
		l.Close()
	}
	file := filepath.Join(t.TempDir(), "jaeger.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, jaegerConfig, ports[0], ports[1], ports[2]), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, binary, "--config", file)
	var log programs.Log
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("Jaeger's log:\n%s", log.String())
		}
	})
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if resp, err := http.Get("http://" + ports[0] + "/api/services"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return ports[0], ports[2]
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("Jaeger does not answer:\n%s", log.String())
		}
	}
}

// jaegerSpan is a span as Jaeger's query API shows it; times are microseconds.
type jaegerSpan struct {
	ID         string `json:"spanID"`
	Name       string `json:"operationName"`
	Start      int64  `json:"startTime"`
	Duration   int64  `json:"duration"`
	References []struct {
		Type    string `json:"refType"`
		TraceID string `json:"traceID"`
		SpanID  string `json:"spanID"`
	} `json:"references"`
	Logs []struct {
		Fields []jaegerTag `json:"fields"`
	} `json:"logs"`
	Tags []jaegerTag `json:"tags"`
	// Warnings are what Jaeger finds odd about it, such as a child that begins before its parent.
	Warnings []string `json:"warnings"`
}

type jaegerTag struct {
	Key   string `json:"key"`
	Value any    `json:"value"`
}

// event reports whether the span has an event of that name; Jaeger calls events logs.
func (s jaegerSpan) event(name string) bool {
	for _, l := range s.Logs {
		for _, f := range l.Fields {
			if f.Key == "event" && f.Value == name {
				return true
			}
		}
	}
	return false
}

func (s jaegerSpan) tag(key string) string {
	for _, t := range s.Tags {
		if t.Key == key {
			return fmt.Sprint(t.Value)
		}
	}
	return ""
}

func readTrace(t *testing.T, query, id string) map[string]jaegerSpan {
	t.Helper()
	resp, err := http.Get("http://" + query + "/api/traces/" + id)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var found struct {
		Data []struct{ Spans []jaegerSpan }
	}
	if json.Unmarshal(text, &found) != nil || len(found.Data) == 0 {
		return nil
	}
	spans := map[string]jaegerSpan{}
	for _, s := range found.Data[0].Spans {
		spans[s.Name] = s
	}
	return spans
}

func TestJaegerShowsEveryHop(t *testing.T) {
	query, otlp := startJaeger(t)
	f := startFleet(t, fleetOptions{replicas: 2, args: []string{"--set", "telemetry.traces.endpoint=" + otlp, "--set", "telemetry.traces.ratio=1"}})
	const id, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	a := f.post("/v1/chat/completions", conversation("x", 3, `,"stream":true,"stream_options":{"include_usage":true}`), "traceparent", "00-"+id+"-"+parent+"-01")
	if a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	const root = "POST /v1/chat/completions"
	want := map[string]string{ // span and its parent
		"kvpilot.admit": root, "kvpilot.read": root, "kvpilot.tokenize": root, "kvpilot.score": root,
		"kvpilot.choose": root, "kvpilot.proxy": root, "kvpilot.release": root, "kvpilot.tokenize.call": "kvpilot.tokenize",
		"kvpilot.dial": "kvpilot.proxy", "kvpilot.first_byte": "kvpilot.proxy", "kvpilot.stream": "kvpilot.proxy",
	}
	var spans map[string]jaegerSpan
	f.eventually("Jaeger has the trace", func() bool {
		spans = readTrace(t, query, id)
		return len(spans) >= len(want)+1
	})
	top := spans[root]
	if len(top.References) == 0 || top.References[0].SpanID != parent {
		t.Errorf("the server span is not a child of the client's: %+v", top.References)
	}
	var steps, parts int64
	for name, over := range want {
		s, ok := spans[name]
		if !ok {
			t.Errorf("no span %s among %d", name, len(spans))
			continue
		}
		if len(s.References) == 0 || s.References[0].SpanID != spans[over].ID {
			t.Errorf("%s is not a child of %s", name, over)
		}
		if len(s.Warnings) > 0 {
			t.Errorf("Jaeger warns of %s: %v", name, s.Warnings)
		}
		if s.Start < top.Start-1000 || s.Start+s.Duration > top.Start+top.Duration+1000 {
			t.Errorf("%s (%d+%d) lies outside of the request (%d+%d)", name, s.Start, s.Duration, top.Start, top.Duration)
		}
		switch over {
		case root:
			steps += s.Duration
		case "kvpilot.proxy":
			parts += s.Duration
		}
	}
	if all := spans["kvpilot.proxy"].Duration; parts > all+1000 || parts < all/2 {
		t.Errorf("dial, first byte and stream take %d µs of the attempt's %d", parts, all)
	}
	if !spans["kvpilot.proxy"].event("kvpilot.first_token") {
		t.Error("the attempt shows no first token")
	}
	if steps > top.Duration+2000 || steps < top.Duration/2 {
		t.Errorf("the steps take %d µs of %d µs", steps, top.Duration)
	}
	for key, value := range map[string]string{
		"gen_ai.request.model": "sim", "http.response.status_code": "200", "kvpilot.replica.id": a.header.Get("X-Kvpilot-Replica"),
		"kvpilot.decision.id": a.header.Get("X-Kvpilot-Decision"), "gen_ai.usage.output_tokens": "4",
	} {
		if got := top.tag(key); got != value {
			t.Errorf("%s = %q, want %q", key, got, value)
		}
	}
	for _, s := range spans {
		for _, tag := range s.Tags {
			if strings.Contains(fmt.Sprint(tag.Value), "says something") {
				t.Errorf("%s shows the prompt in %s", s.Name, tag.Key)
			}
		}
	}
	if !sawTrace(f.engines, id) {
		t.Error("no replica received the trace")
	}
	linkedInJaeger(t, f, query)
}

// linkedInJaeger books and releases over gRPC: the release's span leads to the decision's.
func linkedInJaeger(t *testing.T, f *fleet, query string) {
	t.Helper()
	router, err := client.Dial(f.grpc)
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	decided, header := newTrace(1)
	choice, err := router.Choose(client.WithHeaders(t.Context(), "traceparent", header), &kvpilotv1.ChooseReplicaRequest{Model: "sim", Prompt: &kvpilotv1.ChooseReplicaRequest_Text{Text: "hello"}})
	if err != nil {
		t.Fatal(err)
	}
	ended, header := newTrace(2)
	if err := choice.Release(client.WithHeaders(t.Context(), "traceparent", header), kvpilotv1.ReleaseReason_RELEASE_REASON_COMPLETED, client.Result{}); err != nil {
		t.Fatal(err)
	}
	f.eventually("the release leads to the decision", func() bool {
		target, ok := readTrace(t, query, decided)["kvpilot.choose"]
		for _, r := range readTrace(t, query, ended)["kvpilot.v1.RoutingService/ReportReservation"].References {
			if ok && r.Type == "FOLLOWS_FROM" && r.TraceID == decided && r.SpanID == target.ID {
				return true
			}
		}
		return false
	})
}

// sawTrace reports whether a replica received a traceparent of this trace.
func sawTrace(engines []*enginesim.Engine, id string) bool {
	for _, e := range engines {
		for _, r := range e.Requests() {
			if strings.Contains(r.Traceparent, id) && strings.HasPrefix(r.Path, "/v1/chat/completions") {
				return true
			}
		}
	}
	return false
}
