package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/test/programs"
)

// freePort is a port that nothing listens on.
func freePort(t *testing.T) int {
	t.Helper()
	l := listen(t)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// startSim starts a simulated replica as a process of its own, and returns when it answers.
func startSim(t *testing.T, port int, args ...string) (answers time.Time) {
	t.Helper()
	log := &programs.Log{}
	cmd := exec.Command(os.Args[0], append([]string{"sim", "--port", fmt.Sprint(port), "--no-events", "--speed", "20"}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/health", port)); err == nil {
			resp.Body.Close()
			return time.Now()
		}
	}
	t.Fatalf("the replica does not answer:\n%s", log)
	return time.Time{}
}

// A pool is scaled from zero: requests are there before the first replica's process starts, and none is lost.
func TestRequestsWaitForTheFirstReplicaOfAScaledModel(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	f, _, _ := startProcess(t, "--replica", fmt.Sprintf("http://127.0.0.1:%d", port), "--set", "scaling.models=sim")
	const requests = 24
	type result struct {
		status int
		body   string
		at     time.Time
	}
	results := make(chan result, requests)
	var all sync.WaitGroup
	for i := range requests {
		all.Go(func() {
			body := fmt.Sprintf(`{"model":"sim","max_tokens":4,"stream":%t,"messages":[{"role":"user","content":"request %d"}]}`, i%2 == 0, i)
			resp, err := http.Post("http://"+f.http+"/v1/chat/completions", "application/json", strings.NewReader(body))
			if err != nil {
				results <- result{body: err.Error()}
				return
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			if err != nil {
				text = append(text, err.Error()...)
			}
			results <- result{resp.StatusCode, string(text), time.Now()}
		})
	}
	f.eventually("all requests wait, and one replica is wanted at least", func() bool {
		return f.metric("kvpilot_pool_waiting", `model="sim"`) == requests && f.metric("kvpilot_pool_wanted_replicas", `model="sim"`) >= 1
	})
	time.Sleep(1500 * time.Millisecond) // an autoscaler looks now and then
	if len(results) > 0 {
		t.Fatalf("a request was answered without a replica: %+v", <-results)
	}
	up := startSim(t, port)
	all.Wait()
	close(results)
	first := time.Duration(1 << 62)
	for r := range results {
		if r.status != http.StatusOK || strings.Contains(r.body, `"error"`) || !strings.Contains(r.body, "choices") {
			t.Errorf("a request was lost: %d %s", r.status, r.body)
		}
		first = min(first, r.at.Sub(up))
	}
	t.Logf("the first answer came %v after the replica's first own", first)
	if first > time.Second {
		t.Errorf("the first answer came %v after the replica's first own, want a second at most", first)
	}
	if got := f.metric("kvpilot_pool_waits_total", `result="ready"`); got != requests {
		t.Errorf("%v requests are counted as served after a wait, want %d", got, requests)
	}
}

func TestWhatNothingScalesIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	f := startBefore(t, fmt.Sprintf("http://127.0.0.1:%d", freePort(t)), "--set", "scaling.models=sim", "--set", "scaling.max_wait=300ms")
	for model, least := range map[string]time.Duration{"other": 0, "sim": 300 * time.Millisecond} {
		began := time.Now()
		resp, err := http.Post("http://"+f.http+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"`+model+`","messages":[{"role":"user","content":"hi"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if took := time.Since(began); err != nil || resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || took < least {
			t.Errorf("%s: %d after %v: %s %v", model, resp.StatusCode, took, text, err)
		}
	}
}

// A pool's engines sleep: a request wakes one of them and waits for it, and none is lost.
func TestASleepingEngineIsWokenByARequest(t *testing.T) {
	t.Parallel()
	var ports [2]int
	args := []string{"--set", "scaling.models=sim", "--set", "scaling.wake=true", "--set", "enginestats.interval=100ms"}
	for i := range ports {
		ports[i] = freePort(t)
		startSim(t, ports[i], "--sleep-mode")
		args = append(args, "--replica", fmt.Sprintf("http://127.0.0.1:%d", ports[i]))
	}
	f, _, _ := startProcess(t, args...)
	ask := func() (status int, text string, took time.Duration) {
		t.Helper()
		began := time.Now()
		resp, err := http.Post("http://"+f.http+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"sim","max_tokens":4,"messages":[{"role":"user","content":"hi"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body), time.Since(began)
	}
	if status, text, _ := ask(); status != http.StatusOK {
		t.Fatalf("%d: %s", status, text)
	}
	call := func(port int, method, path string) string {
		t.Helper()
		req, err := http.NewRequest(method, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %s %v", path, resp.StatusCode, body, err)
		}
		return string(body)
	}
	for _, port := range ports {
		call(port, http.MethodPost, "/sleep?level=1")
	}
	f.eventually("the router knows that both sleep", func() bool {
		return f.metric("kvpilot_chooser_stalled") == 2
	})
	status, text, took := ask()
	if status != http.StatusOK || !strings.Contains(text, "choices") {
		t.Errorf("after %v: %d %s", took, status, text)
	}
	t.Logf("answered after %v", took)
	awake := 0
	for _, port := range ports {
		if strings.Contains(call(port, http.MethodGet, "/is_sleeping"), "false") {
			awake++
		}
	}
	if awake != 1 || f.metric("kvpilot_pool_wakes_total", `result="woken"`) != 1 {
		t.Errorf("%d engines are awake, %v were woken, want one", awake, f.metric("kvpilot_pool_wakes_total", `result="woken"`))
	}
	call(ports[0], http.MethodPost, "/sleep?level=2")
	call(ports[1], http.MethodPost, "/sleep?level=2")
}
