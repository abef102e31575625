package direct

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// router is a kvpilot serve as a process of its own.
type router struct {
	address string
	cmd     *exec.Cmd
}

func serveRouter(t *testing.T, replicas []string) *router {
	t.Helper()
	r := &router{address: freeAddress(t)}
	args := []string{"serve", "--http", r.address, "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--set", "telemetry.log_level=error"}
	for _, url := range replicas {
		args = append(args, "--replica", url)
	}
	r.cmd = exec.CommandContext(t.Context(), binary(t), args...)
	r.cmd.WaitDelay = time.Second
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.kill()
		_ = r.cmd.Wait() // it was killed
	})
	waitFor(t, "the router is ready", func() bool {
		resp, err := http.Get("http://" + r.address + "/health")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return r
}

func (r *router) kill() { _ = r.cmd.Process.Signal(syscall.SIGKILL) }

// outcome is one request of a load.
type outcome struct {
	kind  string
	at    time.Time
	first time.Duration
	err   error
}

// one makes one request: a stream, an answer in one piece, or one of a route that the proxy passes to a router.
func one(ctx context.Context, client *http.Client, url string, n int) (o outcome) {
	o = outcome{kind: []string{"stream", "answer", "models"}[n%3], at: time.Now()}
	method, path, body := http.MethodPost, "/v1/chat/completions", fmt.Sprintf(`{"model":"sim","max_tokens":8,"stream":%v,"messages":[{"role":"user","content":"question %d"}]}`, n%3 == 0, n)
	if o.kind == "models" {
		method, path, body = http.MethodGet, "/v1/models", ""
	}
	req, err := http.NewRequestWithContext(ctx, method, url+path, strings.NewReader(body))
	if err != nil {
		o.err = err
		return o
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		o.err = err
		return o
	}
	defer resp.Body.Close()
	o.first = time.Since(o.at)
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		o.err = err
	case resp.StatusCode != http.StatusOK:
		o.err = fmt.Errorf("%s: %.200s", resp.Status, text)
	case o.kind == "stream" && !strings.Contains(string(text), "data: [DONE]"):
		o.err = errors.New("half a stream")
	}
	return o
}

// testFailOver kills one of two routers behind a proxy while requests come: none is lost, and new ones do not wait for more than 0.2 s longer.
func testFailOver(t *testing.T, p proxy) {
	for victim := range 2 {
		t.Run(fmt.Sprintf("router %d is killed", victim), func(t *testing.T) {
			s := startStack(t, 2)
			routers := []*router{serveRouter(t, s.Replicas), serveRouter(t, s.Replicas)}
			url := p.start(t, proxyOptions{}, routers[0].address, routers[1].address)
			client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
			defer client.CloseIdleConnections()

			const perSecond, seconds = 40, 4
			var mu sync.Mutex
			var all []outcome
			var wait sync.WaitGroup
			var killed time.Time
			tick := time.NewTicker(time.Second / perSecond)
			defer tick.Stop()
			for n := range perSecond * seconds {
				<-tick.C
				if n == perSecond*seconds/2 {
					killed = time.Now()
					routers[victim].kill()
				}
				wait.Go(func() {
					o := one(t.Context(), client, url, n)
					mu.Lock()
					all = append(all, o)
					mu.Unlock()
				})
			}
			wait.Wait()
			var before, after time.Duration
			for _, o := range all {
				if o.err != nil {
					t.Errorf("%s, %s after the kill: %v", o.kind, o.at.Sub(killed).Round(time.Millisecond), o.err)
				}
				if o.at.Before(killed) {
					before = max(before, o.first)
				} else {
					after = max(after, o.first)
				}
			}
			t.Logf("%d requests; the worst wait for a head is %s before the kill and %s after it", len(all), before.Round(time.Millisecond), after.Round(time.Millisecond))
			if after > before+200*time.Millisecond {
				t.Errorf("a request waits for %s after the kill, the worst one before it for %s", after, before)
			}
		})
	}
}

func TestHAProxyFailsOver(t *testing.T) {
	haproxy{}.program(t)
	testFailOver(t, haproxy{})
}

func TestNginxFailsOver(t *testing.T) {
	nginx{}.program(t)
	testFailOver(t, nginx{})
}
