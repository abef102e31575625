package main

import (
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// named returns what the first group of a pattern finds, each once.
func named(text, pattern string) []string {
	var list []string
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		if !slices.Contains(list, m[1]) {
			list = append(list, m[1])
		}
	}
	return list
}

func TestWhatOperatorsAreToldToLookAtExists(t *testing.T) {
	// A line of the page may end within what is looked for.
	page := regexp.MustCompile(`\s+`).ReplaceAllString(read(t, "../../docs/operations.md")+read(t, "../../docs/tracing.md")+read(t, "../../docs/fleet.md"), " ")
	metrics, panels, alerts := read(t, "../../docs/metrics.md"), read(t, "../../deploy/grafana/dashboards/kvpilot.json"), read(t, "../../deploy/prometheus/alerts.yml")
	settings := read(t, "../../docs/config.md")
	for _, what := range []struct {
		kind, pattern string
		least         int
		exists        func(string) bool
	}{
		{"metric", `(kvpilot_[a-z0-9_]+)`, 8, func(m string) bool { return strings.Contains(metrics, "`"+m+"`") }},
		{"panel", `panel "([^"]+)"`, 6, func(p string) bool { return strings.Contains(panels, `"title": "`+p+`"`) }},
		{"alert", "`(Kvpilot[A-Za-z]+)`", 7, func(a string) bool { return strings.Contains(alerts, "alert: "+a+"\n") }},
		{"setting", "`((?:listen|chooser|fleet|telemetry|admin|registry)\\.[a-z_.]+)`", 5, func(s string) bool { return strings.Contains(settings, "`"+s+"`") }},
		{"span, event or attribute", "`(kvpilot\\.[a-z_.]+)`", 20, knownSpanWord},
		{"command", "`(kvpilot [a-z][^`]*)`", 8, func(c string) bool { return commandExists(t, c) }},
	} {
		list := named(page, what.pattern)
		if len(list) < what.least {
			t.Errorf("the page names %d of kind %s, at least %d were expected: %v", len(list), what.kind, what.least, list)
		}
		for _, name := range list {
			if !what.exists(name) {
				t.Errorf("there is no %s %s", what.kind, name)
			}
		}
	}
}

// knownSpanWord reports whether the vocabulary of traces has a word.
func knownSpanWord(word string) bool {
	return slices.Contains([]string{
		span.Admit, span.Read, span.Tokenize, span.TokenizeRPC, span.Score, span.Choose, span.Hold, span.Proxy, span.Dial, span.FirstByte, span.Stream, span.Release, span.DryRun, span.Ask, span.Decide,
		span.EventFirstToken, span.EventFallback, span.EventRetry, span.EventHedge, span.EventResume,
		string(span.RequestID), string(span.DecisionID), string(span.Reason), string(span.Cause), string(span.Policy), string(span.Replica), string(span.Rank), string(span.Candidates),
		string(span.PromptTokens), string(span.PromptKind), string(span.OverlapTokens), string(span.BestOverlap), string(span.HostTokens), string(span.StoreTokens), string(span.PredictedLoad), string(span.PredictedTTFT), string(span.Margin),
		string(span.TokenizerSource), string(span.Directory), string(span.DirectoryResult), string(span.DirectoryFor), string(span.KnownTokens), string(span.HeldFor), string(span.Attempt), string(span.Chunks), string(span.Overhead),
		string(span.FinishedBy), string(span.Reused), string(span.Effect), string(span.FallbackOf), string(span.DecidedBy), string(span.AskedBy), string(span.DecidedAlone), string(span.MovedTokens), string(span.Report),
		string(span.MemoryFor), string(span.MemoryNeeded), string(span.MemoryFree), string(span.ProgramsBefore),
	}, word)
}

// commandExists looks a command line up: its commands, flags and number of arguments.
func commandExists(t *testing.T, line string) bool {
	t.Helper()
	words := strings.Fields(line)[1:]
	cmd, rest, err := newRootCommand(nil, io.Discard, io.Discard).Find(words)
	if err != nil || cmd.Name() == "kvpilot" {
		return false
	}
	if err := cmd.ParseFlags(rest); err != nil {
		t.Error(err)
		return false
	}
	if cmd.Args == nil || len(cmd.Flags().Args()) == 0 {
		cmd.Args = cobra.ArbitraryArgs // a page may speak of a command without its argument
	}
	return cmd.ValidateArgs(cmd.Flags().Args()) == nil
}

// TestTheNightsQuestionsAreAnswered asks them of a router one of whose replicas makes trouble.
func TestTheNightsQuestionsAreAnswered(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2, args: []string{"--set", "telemetry.traces.ratio=1"}})
	ask := func(args ...string) string {
		t.Helper()
		text, err := f.command(args...)
		if err != nil {
			t.Fatalf("kvpilot %v: %v", args, err)
		}
		return text
	}
	has := func(question, text string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: %q is not in:\n%s", question, w, text)
			}
		}
	}
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := http.Get("http://" + f.admin + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}

	if status, text := get("/readyz"); status != http.StatusOK {
		t.Errorf("1: status %d: %s", status, text)
	}

	f.engines[1].SetFaults(enginesim.Faults{Where: enginesim.Where{Paths: []string{"/v1/chat/completions"}}, AnswerFaults: enginesim.AnswerFaults{Status: http.StatusServiceUnavailable}})
	for range 2 {
		a := f.post("/v1/chat/completions", conversation("night", 1, `,"stream":true,"stream_options":{"include_usage":true}`), "X-Request-Id", "at-night", "X-Kvpilot-Policy", "round-robin")
		if a.status != http.StatusOK {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
	}
	why := ask("explain", "at-night")
	has("3: why there", why, "▸", "r0/0", "r1/0", "first token after", "predicted")
	has("4: which trace", why, "trace ")
	has("9: it was moved", why, "moved", "attempt 2")
	if f.metric("kvpilot_router_retries_total", `outcome="unavailable"`) < 1 {
		t.Error("9: no retry is counted")
	}
	_, traces := get("/kvpilot/v1/traces")
	has("4: without Jaeger", traces, "kvpilot.stream", "kvpilot.choose")
	for _, kind := range []string{"prompt", "cached", "overlap"} {
		if f.metric("kvpilot_router_tokens_total", `kind="`+kind+`"`) < 0 {
			t.Errorf("5: no tokens of kind %s", kind)
		}
	}
	has("6: the feeds", ask("replicas"), "exact")

	f.engines[1].SetFaults(enginesim.Faults{ConnectionFaults: enginesim.ConnectionFaults{Cut: true}})
	f.eventually("2: a dead replica is told, and why", func() bool {
		text := ask("replicas")
		return strings.Contains(text, "unhealthy") && strings.Contains(text, "\nr1: probe: ")
	})
	has("9: taken out by hand", ask("drain", "r0", "--force"), "r0 is draining")
	f.eventually("1: nothing takes requests", func() bool {
		status, text := get("/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(text, "no replica takes requests: 1 draining, 1 unhealthy")
	})
	a := f.post("/v1/chat/completions", conversation("refused", 1, ""))
	if a.status != http.StatusServiceUnavailable || a.header.Get("X-Kvpilot-Reason") == "" {
		t.Errorf("8: status %d, reason %q", a.status, a.header.Get("X-Kvpilot-Reason"))
	}
	if reason := a.header.Get("X-Kvpilot-Reason"); f.metric("kvpilot_router_requests_total", `reason="`+reason+`"`) != 1 {
		t.Errorf("8: the refusal is not counted under %q", reason)
	}
	has("9: given back", ask("replicas", "undrain", "r0"), "r0 is ready")
}

func TestAnExemplarLeadsFromALatencyToItsTrace(t *testing.T) {
	t.Parallel()
	c, args := startCollector(t)
	f := startFleet(t, fleetOptions{replicas: 1, args: args})
	streamed, header := newTrace(400)
	whole, other := newTrace(401)
	for header, more := range map[string]string{header: `,"stream":true`, other: ""} {
		if a := f.post("/v1/chat/completions", conversation("exemplar", 1, more), "traceparent", header); a.status != http.StatusOK {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
	}
	f.traceOf(c, streamed) // it was kept
	f.traceOf(c, whole)
	req, err := http.NewRequest(http.MethodGet, "http://"+f.admin+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for metric, id := range map[string]string{"kvpilot_router_ttft_seconds_bucket": streamed, "kvpilot_router_request_duration_seconds_bucket": whole} {
		if !regexp.MustCompile(`(?m)^` + metric + `\{.*# \{.*trace_id="` + id + `".*\}`).Match(text) {
			t.Errorf("no bucket of %s leads to trace %s", metric, id)
		}
	}
	if !strings.HasSuffix(string(text), "# EOF\n") {
		t.Error("the metrics are not OpenMetrics")
	}
}

func TestAWrongAddressIsExplained(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 1})
	l := listen(t)
	nobody := l.Addr().String()
	l.Close()
	for address, want := range map[string]string{nobody: "no router answers at", f.http: "this is kvpilot's REST address (listen.http); gRPC is at its gRPC address (listen.grpc, by default port 9090): set --address", f.admin: "this is kvpilot's admin address (listen.admin); gRPC is"} {
		if _, err := f.command("replicas", "--address", address); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
	if got, err := f.command("replicas", "--address", "http://"+f.grpc); err != nil || !strings.Contains(got, "r0") {
		t.Errorf("an address with a scheme: %v %s", err, got)
	}
}
