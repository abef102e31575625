package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/programs"
)

// startProcess starts a router as a process of its own. ended gets what it left with.
func startProcess(t *testing.T, args ...string) (f *fleet, p *os.Process, ended chan error) {
	t.Helper()
	log := &programs.Log{}
	cmd := exec.Command(os.Args[0], append([]string{"serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended = make(chan error, 1)
	gone := make(chan struct{})
	go func() { ended <- cmd.Wait(); close(gone) }()
	t.Cleanup(func() {
		cmd.Process.Kill() // it has ended, unless the test failed
		<-gone
		http.DefaultClient.CloseIdleConnections()
	})
	f = &fleet{t: t, log: log}
	f.http, f.grpc, f.admin = f.addresses(ended)
	f.eventually("the router is ready", func() bool { return f.ready() == http.StatusOK })
	return f, cmd.Process, ended
}

// ready is the status of /readyz; 0 when nobody answers.
func (f *fleet) ready() int {
	resp, err := http.Get("http://" + f.admin + "/readyz")
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// The seventh of docs/operations.md's questions: do our token ids equal the engine's? Here is a
// replica that counts other prompt tokens than its tokenizer gives.
func TestAnEngineThatCountsOtherwiseIsTold(t *testing.T) {
	sim := startFleet(t, fleetOptions{replicas: 1, noEvents: true})
	engine, err := url.Parse(sim.urls[0])
	if err != nil {
		t.Fatal(err)
	}
	counted := regexp.MustCompile(`"prompt_tokens":\d+`)
	replica := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(engine) },
		ModifyResponse: func(resp *http.Response) error {
			if resp.Request.URL.Path != "/v1/chat/completions" {
				return nil
			}
			text, err := io.ReadAll(resp.Body)
			text = counted.ReplaceAll(text, []byte(`"prompt_tokens":20`))
			resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
			resp.Header.Set("Content-Length", strconv.Itoa(len(text)))
			return err
		},
	})
	defer replica.Close()
	f, p, ended := startProcess(t, "--replica", replica.URL)
	if a := f.post("/v1/chat/completions", conversation("counted", 1, "")); a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	f.eventually("the mismatch is counted", func() bool { return f.metric("kvpilot_tokenizer_parity_mismatches_total") > 0 })
	f.eventually("the console says which model is suspect", func() bool {
		resp, err := http.Get("http://" + f.admin + "/kvpilot/v1/status")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		var state struct {
			Parity []struct{ Model, State string }
		}
		return json.NewDecoder(resp.Body).Decode(&state) == nil && len(state.Parity) == 1 && state.Parity[0].Model == "sim" && state.Parity[0].State == "PARITY_STATE_SUSPECT"
	})
	f.eventually("the log says at which token they part", func() bool {
		return strings.Contains(f.log.String(), "tokenization of this model is suspect") && strings.Contains(f.log.String(), "position=20")
	})
	// A hang-up, as logrotate's scripts send it, does it no harm: it has the settings read again, which are as they were.
	if err := p.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	f.eventually("the hang-up is counted as a reload", func() bool { return f.metric("kvpilot_config_reloads_total", `result="unchanged"`) == 1 })
	if a := f.post("/v1/chat/completions", conversation("after the hang-up", 1, "")); a.status != http.StatusOK {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The tenth: how do I take the router down without losing a stream? A process of its own gets the
// signal while an answer is under way.
func TestATerminatedRouterLosesNoStream(t *testing.T) {
	t.Parallel()
	c, traced := startCollector(t)
	f := startFleet(t, fleetOptions{replicas: 1})
	own, p, ended := startProcess(t, append([]string{"--replica", f.urls[0], "--set", "listen.drain_delay=1s"}, traced...)...)

	f.engines[0].SetFaults(enginesim.Faults{EngineFaults: enginesim.EngineFaults{Stall: true}})
	id, header := newTrace(77)
	answered := make(chan answer, 1)
	go func() {
		answered <- postTo(t, "http://"+own.http+"/v1/chat/completions", conversation("the last one", 1, `,"stream":true`), "traceparent", header)
	}()
	own.eventually("the engine has the request", func() bool { return sawTrace(f.engines, id) })
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	own.eventually("the router is not ready any more", func() bool { return own.ready() == http.StatusServiceUnavailable })
	own.eventually("it accepts nothing more", func() bool {
		resp, err := http.Get("http://" + own.http + "/v1/models")
		if err == nil {
			resp.Body.Close()
			if !resp.Close {
				t.Error("the router keeps a client's connection that it is about to close")
			}
		}
		return err != nil
	})
	select {
	case a := <-answered:
		t.Fatalf("the stream ended before its engine was done: %d %v %s", a.status, a.err, a.body)
	case err := <-ended:
		t.Fatalf("the router ended with a stream under way: %v\n%s", err, own.log)
	default:
	}
	f.engines[0].SetFaults(enginesim.Faults{})
	a := <-answered
	if list := a.events(); a.err != nil || a.status != http.StatusOK || len(list) == 0 || list[len(list)-1] != "[DONE]" {
		t.Errorf("status %d, %v: %s", a.status, a.err, a.body)
	}
	if err := <-ended; err != nil {
		t.Errorf("the router ended with %v\n%s", err, own.log)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	spans := 0
	for _, s := range c.spans {
		if hex.EncodeToString(s.GetTraceId()) == id {
			spans++
		}
	}
	if spans < 8 {
		t.Errorf("%d spans of the last request were flushed", spans)
	}
}

// What is not done at the drain deadline ends with an error in the client's format, not with a cut connection.
func TestTheDrainDeadlineEndsRequestsWithAnError(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 1})
	own, p, ended := startProcess(t, "--replica", f.urls[0], "--set", "listen.drain_timeout=100ms")
	f.engines[0].SetFaults(enginesim.Faults{EngineFaults: enginesim.EngineFaults{Stall: true}})
	answers := make(chan answer, 2)
	for n, more := range []string{`,"stream":true`, ""} {
		id, header := newTrace(88 + n)
		go func() {
			answers <- postTo(t, "http://"+own.http+"/v1/chat/completions", conversation("too long", 1, more), "traceparent", header)
		}()
		own.eventually("the engine has the request", func() bool { return sawTrace(f.engines, id) })
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for range cap(answers) {
		if a := <-answers; a.err != nil || a.status != http.StatusServiceUnavailable || !strings.Contains(string(a.body), `"code":"shutting_down"`) {
			t.Errorf("status %d, %v: %s", a.status, a.err, a.body)
		}
	}
	if err := <-ended; err != nil {
		t.Errorf("the router ended with %v\n%s", err, own.log)
	}
}
