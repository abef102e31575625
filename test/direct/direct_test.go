// Package direct runs the proxies of deploy/ for real, where they are installed: kvpilot chooses, the
// proxy streams straight from the replica, and no booking is left behind however a request ends.
package direct

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/internal/proc"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/programs"
	"github.com/kvpilot/kvpilot/test/stack"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
}

// proxy is one of the programs under test.
type proxy interface {
	// start starts it in front of routers and returns its base URL.
	start(t *testing.T, o proxyOptions, routers ...string) string
}

// proxyOptions are what a test may set.
type proxyOptions struct {
	lease time.Duration
	key   string // the proxy's own
	// cert and certKey name the files of a certificate: the proxy speaks TLS.
	cert, certKey string
	// through says that /v1/completions go through kvpilot, as routes do that the proxy does not know.
	through bool
}

// binary names the kvpilot under test, or skips the test: the tests of this package run once, by themselves.
func binary(t *testing.T) string {
	t.Helper()
	name := os.Getenv("DIRECT_BINARY")
	if name == "" {
		t.Skip("real proxies and signals: set DIRECT_BINARY to the kvpilot binary, as make test-haproxy and make test-nginx do")
	}
	return name
}

// lacking skips the test; in CI, which installs the proxies, it fails.
func lacking(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// find names the program, or skips the test.
func find(t *testing.T, name, hint string) string {
	t.Helper()
	binary(t)
	for _, at := range []string{name, "/usr/sbin/" + name, "/usr/local/sbin/" + name} {
		if path, err := exec.LookPath(at); err == nil {
			return path
		}
	}
	lacking(t, "no %s is installed (Debian: %s)", name, hint)
	return ""
}

func deployed(t *testing.T, name string) string {
	t.Helper()
	dir, err := filepath.Abs("../../deploy/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// replaced is text with one part replaced, which must be there once.
func replaced(t *testing.T, text, from, to string) string {
	t.Helper()
	if strings.Count(text, from) != 1 {
		t.Fatalf("the file has %q %d times", from, strings.Count(text, from))
	}
	return strings.Replace(text, from, to, 1)
}

// join writes files one after the other into another one.
func join(t *testing.T, to string, from ...string) {
	t.Helper()
	var all []byte
	for _, name := range from {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text...)
	}
	if err := os.WriteFile(to, all, 0o600); err != nil {
		t.Fatal(err)
	}
}

// launch runs the program until the test ends, and waits until it listens.
func launch(t *testing.T, cmd *exec.Cmd, address string) string {
	t.Helper()
	log := &programs.Log{}
	cmd.Stdout, cmd.Stderr = log, log
	p, err := proc.Start(filepath.Base(cmd.Path), cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(cmd.Path), log)
		}
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
			return "http://" + address
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen:\n%s", filepath.Base(cmd.Path), log)
		}
	}
}

func startStack(t *testing.T, replicas int) *stack.Stack {
	t.Helper()
	return stack.Start(t, stack.Options{Replicas: replicas})
}

func post(t *testing.T, url, body string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return do(t, req)
}

func do(t *testing.T, req *http.Request) (*http.Response, string) {
	t.Helper()
	client := http.Client{Timeout: 2 * time.Minute}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

const (
	chat = `{"model":"sim","messages":[{"role":"user","content":"%s"}],"max_tokens":5,"stream":%v}`
	// long is an answer that goes on until its client leaves.
	long = `{"model":"sim","messages":[{"role":"user","content":"a long story"}],"max_tokens":2000,"ignore_eos":true,"stream":true}`
)

// ask sends a question for a long stream and returns the answer as soon as its head is there. The caller closes it, or ends
// ctx to leave.
func ask(ctx context.Context, url string) (*http.Response, error) { return askAs(ctx, url, "") }

// askAs is ask with an id for the request.
func askAs(ctx context.Context, url, id string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", strings.NewReader(long))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if id != "" {
		req.Header.Set("X-Request-Id", id)
	}
	return http.DefaultTransport.RoundTrip(req)
}

// testProxy is what every proxy must do.
func testProxy(t *testing.T, p proxy) {
	t.Run("streams from the chosen replica", func(t *testing.T) { testStreams(t, p) })
	t.Run("passes true status codes", func(t *testing.T) { testStatuses(t, p) })
	t.Run("routes long bodies", func(t *testing.T) { testLongBodies(t, p) })
	t.Run("frees what a leaving client had booked", func(t *testing.T) { testLeaving(t, p) })
	t.Run("waits for a choice that is held", func(t *testing.T) { testHeld(t, p) })
	t.Run("reports how a request ended", func(t *testing.T) { testEnds(t, p) })
	t.Run("has a name, TLS and HTTP/2", func(t *testing.T) { testNames(t, p) })
	t.Run("needs a key where kvpilot does", func(t *testing.T) { testKeys(t, p) })
}

func testStreams(t *testing.T, p proxy) {
	s := startStack(t, 2)
	url := p.start(t, proxyOptions{}, s.HTTP)
	for _, stream := range []bool{false, true} {
		resp, body := post(t, url+"/v1/chat/completions", fmt.Sprintf(chat, "hi", stream), "X-Request-Id", "mine")
		if resp.StatusCode != http.StatusOK || resp.Header.Get("X-Kvpilot-Replica") == "" {
			t.Fatalf("stream %v: got %d, replica %q: %s", stream, resp.StatusCode, resp.Header.Get("X-Kvpilot-Replica"), body)
		}
		if stream != strings.HasSuffix(body, "data: [DONE]\n\n") {
			t.Errorf("stream %v: got %q", stream, body)
		}
		if !strings.Contains(body, "chatcmpl-mine") {
			t.Errorf("the replica did not see the request's id: %s", body)
		}
	}
	for _, path := range []string{"/v1/completions", "/v1/responses", "/v1/messages"} {
		resp, body := post(t, url+path, `{"model":"sim","prompt":"hi","input":"hi","messages":[{"role":"user","content":"hi"}],"max_tokens":3}`)
		if resp.StatusCode != http.StatusOK || resp.Header.Get("X-Kvpilot-Replica") == "" {
			t.Errorf("%s: got %d %s", path, resp.StatusCode, body)
		}
	}
	if n := metric(t, s, "kvpilot_router_requests_total"); n != 0 {
		t.Errorf("%v of these requests went through kvpilot", n)
	}
	for path, want := range map[string]int{"/v1/models": 200, "/v1/models/sim": 200, "/v1/nothing": 404, "/v1/chat/completions": 405} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, body := do(t, req); resp.StatusCode != want {
			t.Errorf("GET %s, kvpilot's to answer: got %d %s, want %d", path, resp.StatusCode, body, want)
		}
	}
	released(t, s)
	if n := metric(t, s, "kvpilot_load_ended_total", `reason="released"`); n != 5 {
		t.Errorf("%v bookings were released, want 5", n)
	}
}

func testStatuses(t *testing.T, p proxy) {
	s := startStack(t, 2)
	url := p.start(t, proxyOptions{}, s.HTTP)
	for name, c := range map[string]struct {
		body   string
		status int
	}{
		"bad JSON":      {`{"model":`, http.StatusBadRequest},
		"no body":       {``, http.StatusBadRequest},
		"unknown model": {`{"model":"nobody","messages":[{"role":"user","content":"x"}]}`, http.StatusNotFound},
		"the engine's":  {`{"model":"sim","messages":[{"role":"user","content":"x"}],"max_tokens":-5}`, http.StatusBadRequest},
	} {
		resp, body := post(t, url+"/v1/chat/completions", c.body)
		if resp.StatusCode != c.status || !strings.Contains(body, `"message"`) || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: got %d %s, want %d", name, resp.StatusCode, body, c.status)
		}
	}
	released(t, s)
	gone := p.start(t, proxyOptions{}, "127.0.0.1:1")
	resp, body := post(t, gone+"/v1/chat/completions", fmt.Sprintf(chat, "hi", false))
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || !strings.Contains(body, "router_unreachable") {
		t.Errorf("no router: got %d %s", resp.StatusCode, body)
	}
	for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/v1/embeddings", "/v1/messages/count_tokens"} {
		resp, body := post(t, gone+path, fmt.Sprintf(chat, "hi", false), "X-Request-Id", "mine")
		wantForm(t, path, resp, body, "the router cannot be reached", "ROUTER_UNREACHABLE")
	}
	if resp, body := post(t, url+"/v1/messages", `{"model":"nobody","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`); resp.StatusCode != 404 || !strings.HasPrefix(body, `{"type":"error"`) {
		t.Errorf("kvpilot's refusal to a client of Anthropic's API: %d %s", resp.StatusCode, body)
	}
}

// testLongBodies sends bodies around and beyond what a proxy shows to kvpilot, with and without their length.
func testLongBodies(t *testing.T, p proxy) {
	s := stack.Start(t, stack.Options{Engine: func(c *enginesim.Config) {
		c.Core.MaxModelLen, c.Core.Blocks, c.Core.Timing.Speed = 6<<20, 400_000, 1e6
	}})
	url := p.start(t, proxyOptions{}, s.HTTP)
	sizes := []int{200 << 10, 300 << 10, 6 << 20}
	if testing.Short() {
		sizes = sizes[:2]
	}
	for _, size := range sizes {
		for _, chunked := range []bool{false, true} {
			body := fmt.Sprintf(chat, strings.Repeat("lång ", size/6), true)
			var from io.Reader = strings.NewReader(body)
			if chunked {
				from = struct{ io.Reader }{from} // net/http cannot see its length
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/chat/completions", from)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, answer := do(t, req)
			if resp.StatusCode != http.StatusOK || resp.Header.Get("X-Kvpilot-Replica") == "" || !strings.HasSuffix(answer, "[DONE]\n\n") {
				t.Errorf("a body of %d bytes, chunked %v: got %d %.300s", len(body), chunked, resp.StatusCode, answer)
			}
		}
	}
	released(t, s)
}

// testLeaving has clients leave before the first token and in mid-stream.
func testLeaving(t *testing.T, p proxy) {
	s := startStack(t, 1)
	url := p.start(t, proxyOptions{}, s.HTTP)
	// leave sends a request and leaves it once the replica works on it and what is waited for has come.
	leave := func(t *testing.T, wait func(*http.Response)) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		answers, done := make(chan *http.Response, 1), make(chan struct{})
		go func() {
			defer close(done)
			if resp, err := ask(ctx, url); err == nil {
				answers <- resp
			}
		}()
		waitFor(t, "the booking", func() bool { return metric(t, s, "kvpilot_load_reservations") == 1 && running(t, s) == 1 })
		if wait != nil {
			select {
			case resp := <-answers:
				defer resp.Body.Close()
				wait(resp)
			case <-time.After(20 * time.Second):
				t.Error("no answer within 20 s")
			}
		}
		cancel()
		<-done
	}
	t.Run("in mid-stream", func(t *testing.T) {
		slow(t, s, time.Hour)
		leave(t, func(resp *http.Response) {
			if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: ") {
				t.Errorf("the stream begins with %q, %v", line, err)
			}
		})
		ended(t, s)
	})
	t.Run("before the first token", func(t *testing.T) {
		faults(t, s, `{"stall":true}`)
		leave(t, nil)
		ended(t, s)
		faults(t, s, `{}`)
	})
}

// testHeld has requests wait for their choice, longer than the programs let scripts run by themselves. The
// client of one leaves meanwhile, and keeps nobody else from being answered.
func testHeld(t *testing.T, p proxy) {
	if testing.Short() {
		t.Skip("a wait of five seconds")
	}
	s := stack.Start(t, stack.Options{Replicas: 1, Configure: func(c *config.Config) { c.Chooser.HoldAbove = time.Millisecond }})
	url := p.start(t, proxyOptions{lease: 3 * time.Second}, s.HTTP)
	// Somebody's long prompt is booked, and nobody works on it until it is given back.
	resp, answer := post(t, "http://"+s.HTTP+"/kvpilot/v1/choose", `{"model":"sim","lease":"3600s","token_ids":{"ids":[`+strings.Repeat("7,", 120_000)+`7]}}`)
	_, rest, found := strings.Cut(answer, `"reservation_id":"`)
	booking, _, _ := strings.Cut(rest, `"`)
	if resp.StatusCode != http.StatusOK || !found {
		t.Fatalf("the booking that makes the replica busy: %d %s", resp.StatusCode, answer)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	left := make(chan struct{})
	go func() {
		defer close(left)
		if resp, err := ask(ctx, url); err == nil {
			resp.Body.Close()
		}
	}()
	waitFor(t, "the request is held", func() bool { return metric(t, s, "kvpilot_chooser_held_total") == 1 })
	cancel()
	<-left
	second := make(chan error, 1)
	go func() {
		resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(fmt.Sprintf(chat, "hi", true)))
		if err == nil {
			var text []byte
			text, err = io.ReadAll(resp.Body)
			resp.Body.Close()
			if err == nil && (resp.StatusCode != http.StatusOK || !strings.HasSuffix(string(text), "[DONE]\n\n")) {
				err = fmt.Errorf("got %d %s", resp.StatusCode, text)
			}
		}
		second <- err
	}()
	waitFor(t, "the second request is held", func() bool { return metric(t, s, "kvpilot_chooser_held_total") >= 2 })
	time.Sleep(5 * time.Second) // HAProxy's limit for scripts is 4 s
	if resp, body := post(t, "http://"+s.HTTP+"/kvpilot/v1/reservations/"+booking+":report", `{"release":{"reason":"RELEASE_REASON_COMPLETED"}}`); resp.StatusCode != http.StatusOK {
		t.Errorf("the release: %d %s", resp.StatusCode, body)
	}
	select {
	case err := <-second:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("no answer within a minute")
	}
	waitFor(t, "the engine has nothing to do", func() bool { return running(t, s) == 0 })
	released(t, s)
}

// slow makes long answers take about so long.
func slow(t *testing.T, s *stack.Stack, d time.Duration) {
	t.Helper()
	for _, url := range s.Replicas {
		// At speed 1 a token takes about 20 ms; long asks for 2000.
		speed := 2000 * 0.02 / d.Seconds()
		if resp, body := post(t, url+"/sim/speed", fmt.Sprintf(`{"speed":%g}`, speed)); resp.StatusCode != http.StatusOK {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
	}
}

func faults(t *testing.T, s *stack.Stack, text string) {
	t.Helper()
	for _, url := range s.Replicas {
		if resp, body := post(t, url+"/sim/faults", text); resp.StatusCode != http.StatusOK {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
	}
}

// running counts the requests that the replicas work on.
func running(t *testing.T, s *stack.Stack) int {
	t.Helper()
	n := 0
	for _, url := range s.Replicas {
		resp, err := http.Get(url + "/sim/state") // its metrics stand still while it stalls
		if err != nil {
			t.Fatal(err)
		}
		var state struct {
			Ranks []struct {
				Running int `json:"running"`
				Waiting int `json:"waiting"`
			} `json:"ranks"`
		}
		err = json.NewDecoder(resp.Body).Decode(&state)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for _, rank := range state.Ranks {
			n += rank.Running + rank.Waiting
		}
	}
	return n
}

// ended waits until the replicas work on nothing and nothing is booked, and wants that to be so because it was
// reported and not because a lease ran out.
func ended(t *testing.T, s *stack.Stack) {
	t.Helper()
	waitFor(t, "the engine gives the request up", func() bool { return running(t, s) == 0 })
	released(t, s)
	if n := metric(t, s, "kvpilot_load_ended_total", `reason="expired"`); n != 0 {
		t.Errorf("%v bookings ended with their lease", n)
	}
}

// released waits until the router holds no booking.
func released(t *testing.T, s *stack.Stack) {
	t.Helper()
	waitFor(t, "no booking is left", func() bool { return metric(t, s, "kvpilot_load_reservations") == 0 })
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%s: not within 20 s", what)
			return
		}
	}
}

// metric sums the router's samples of a name whose labels hold all the texts.
func metric(t *testing.T, s *stack.Stack, name string, labels ...string) float64 {
	t.Helper()
	resp, err := http.Get("http://" + s.Admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return sum(string(text), name, labels...)
}

func sum(text, name string, labels ...string) (total float64) {
next:
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(rest, l) {
				continue next
			}
		}
		var v float64
		if _, err := fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &v); err == nil {
			total += v
		}
	}
	return total
}
