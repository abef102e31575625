package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/kvpilot/kvpilot/test/programs"
)

// slowEngine is an engine whose every answer waits until the test lets it go.
func slowEngine(t *testing.T) (url string, asked <-chan struct{}, release func()) {
	t.Helper()
	held, first := make(chan struct{}), make(chan struct{})
	var once, free sync.Once
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		once.Do(func() { close(first) })
		select {
		case <-held:
		case <-r.Context().Done():
			return
		}
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprint(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
		case "/v1/completions":
			fmt.Fprint(w, `{"id":"c","object":"text_completion","choices":[{"index":0,"text":"ok","finish_reason":"stop"}]}`)
		case "/health":
		default:
			http.NotFound(w, r)
		}
	}))
	release = func() { free.Do(func() { close(held) }) }
	t.Cleanup(func() { release(); s.Close() })
	return s.URL, first, release
}

// startBefore starts a router before a replica, and does not wait for anything but its addresses.
func startBefore(t *testing.T, url string, args ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, log: &programs.Log{}}
	args = append([]string{"serve", "--replica", url, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args...)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- run(ctx, args, nil, io.Discard, f.log) }()
	f.stop = sync.OnceFunc(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	t.Cleanup(f.stop)
	f.http, f.grpc, f.admin = f.addresses(served)
	return f
}

// readiness is the status of the admin address's /readyz.
func (f *fleet) readiness() int {
	f.t.Helper()
	resp, err := http.Get("http://" + f.admin + "/readyz")
	if err != nil {
		f.t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

func TestRequestsWaitForTheFirstReport(t *testing.T) {
	url, asked, release := slowEngine(t)
	f := startBefore(t, url, "--set", "listen.start_wait=1m")
	<-asked
	if got := f.readiness(); got != http.StatusServiceUnavailable {
		t.Errorf("/readyz before the replica has reported: got %d, want 503", got)
	}
	const requests = 8
	answers := make(chan answer, requests)
	for range requests {
		go func() {
			resp, err := http.Post("http://"+f.http+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"hello","max_tokens":1}`))
			if err != nil {
				answers <- answer{err: err}
				return
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			answers <- answer{status: resp.StatusCode, body: body, err: err}
		}()
	}
	conn, err := grpc.NewClient(f.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	checked := make(chan error, 1)
	go func() {
		_, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
		checked <- err
	}()
	select {
	case a := <-answers:
		t.Errorf("an answer before the replica has reported: %d %s %v", a.status, a.body, a.err)
		answers <- a
	case err := <-checked:
		t.Errorf("an RPC was answered before the replica has reported: %v", err)
		checked <- err
	case <-time.After(50 * time.Millisecond): // a router that does not wait has answered by now, or the test does not see it
	}
	release()
	for range requests {
		if a := <-answers; a.err != nil || a.status != http.StatusOK {
			t.Errorf("got %d %s %v, want 200", a.status, a.body, a.err)
		}
	}
	if err := <-checked; err != nil {
		t.Errorf("health over gRPC: %v", err)
	}
	if got := f.readiness(); got != http.StatusOK {
		t.Errorf("/readyz after the report: got %d, want 200", got)
	}
	if strings.Contains(f.log.String(), "level=ERROR") {
		t.Errorf("the log has errors:\n%s", f.log)
	}
}

func TestASilentReplicaHoldsRequestsForNoLongerThanTheSetting(t *testing.T) {
	url, _, _ := slowEngine(t)
	f := startBefore(t, url, "--set", "listen.start_wait=50ms")
	a := f.post("/v1/completions", `{"model":"m","prompt":"hello"}`)
	if a.status != http.StatusServiceUnavailable {
		t.Errorf("got %d %s, want 503", a.status, a.body)
	}
	if n := strings.Count(f.log.String(), `level=INFO msg="serving before every replica has answered a probe"`); n != 1 {
		t.Errorf("the log says %d times why, want once:\n%s", n, f.log)
	}
}

func TestARouterThatStopsWhileItWaitsClosesItsListeners(t *testing.T) {
	url, asked, _ := slowEngine(t)
	f := startBefore(t, url, "--set", "listen.start_wait=1m")
	<-asked
	f.stop()
	for _, address := range []string{f.http, f.grpc, f.admin} {
		if c, err := net.Dial("tcp", address); err == nil {
			c.Close()
			t.Errorf("%s still accepts connections", address)
		}
	}
}

// A start would fail for these, and the check of the settings says so.
func TestCheckConfigReadsFilesOfKeys(t *testing.T) {
	for name, set := range map[string]string{
		"api.keys_file": "api.keys_file=/nonexistent/keys", "fleet": "fleet.key_file=/nonexistent/key", "tls_cert": "listen.tls_cert=/nonexistent/cert",
	} {
		args := []string{"serve", "--check-config", "--set", set}
		switch name {
		case "fleet":
			args = append(args, "--set", "fleet.listen=127.0.0.1:7946")
		case "tls_cert":
			args = append(args, "--set", "listen.tls_key=/nonexistent/key")
		}
		var out strings.Builder
		if err := run(t.Context(), args, nil, &out, io.Discard); err != nil || !strings.Contains(out.String(), "a start here would fail") || !strings.Contains(out.String(), "/nonexistent/") {
			t.Errorf("%s: %v %q, want a line that names the file", set, err, &out)
		}
	}
}

func TestCheckConfigDoubtsAReplicaURLThatEndsInV1(t *testing.T) {
	var out strings.Builder
	err := run(t.Context(), []string{"serve", "--check-config", "--replica", "http://10.0.0.7:8000", "--replica", "http://10.0.0.8:8000/v1"}, nil, &out, io.Discard)
	want := "the settings are valid\nprobably wrong: registry.replicas[1].url: \"http://10.0.0.8:8000/v1\" ends in /v1: remove /v1 from the replica's url: kvpilot adds it where it belongs\n"
	if err != nil || out.String() != want {
		t.Errorf("%v %q, want %q", err, &out, want)
	}
}
