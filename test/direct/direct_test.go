// Package haproxy runs deploy/haproxy with a real HAProxy, when one is installed.
package haproxy

import (
	"bytes"
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

	"github.com/kvpilot/kvpilot/test/stack"
)

func program(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"haproxy", "/usr/sbin/haproxy", "/usr/local/sbin/haproxy"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no haproxy is installed (Debian: apt install haproxy)")
	return ""
}

// start starts HAProxy with the shipped configuration in front of s, and returns its base URL.
func start(t *testing.T, router string) string {
	t.Helper()
	name := program(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	dir, err := filepath.Abs("../../deploy/haproxy")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), name, "-db", "-f", filepath.Join(dir, "haproxy.cfg"))
	cmd.Env = append(os.Environ(), "KVPILOT_URL=http://"+router, "KVPILOT_ADDRESS="+router, "KVPILOT_BIND="+address, "KVPILOT_LUA="+filepath.Join(dir, "kvpilot.lua"))
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 3 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		cmd.Wait()         //nolint:errcheck // killed
		if t.Failed() {
			t.Logf("haproxy said:\n%s", log.String())
		}
	})
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
			return "http://" + address
		}
		if time.Now().After(deadline) {
			t.Fatalf("haproxy does not listen:\n%s", log.String())
		}
	}
}

func post(t *testing.T, url, body string) (*http.Response, string) {
	t.Helper()
	client := http.Client{Timeout: 15 * time.Second}
	resp, err := client.Post(url, "application/json", strings.NewReader(body))
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

const chat = `{"model":"sim","messages":[{"role":"user","content":"%s"}],"max_tokens":5,"stream":%v}`

func TestHAProxyStreamsFromTheChosenReplica(t *testing.T) {
	program(t)
	s := stack.Start(t, stack.Options{})
	url := start(t, s.HTTP)
	for _, stream := range []bool{false, true} {
		resp, body := post(t, url+"/v1/chat/completions", fmt.Sprintf(chat, "hi", stream))
		if resp.StatusCode != http.StatusOK || resp.Header.Get("X-Kvpilot-Replica") == "" {
			t.Fatalf("stream %v: got %d, replica %q: %s", stream, resp.StatusCode, resp.Header.Get("X-Kvpilot-Replica"), body)
		}
		if stream != strings.HasSuffix(body, "data: [DONE]\n\n") {
			t.Errorf("stream %v: got %q", stream, body)
		}
	}
	if resp, body := post(t, url+"/v1/chat/completions", fmt.Sprintf(chat, strings.Repeat("long ", 55_000), true)); resp.StatusCode != http.StatusOK || !strings.HasSuffix(body, "[DONE]\n\n") {
		t.Errorf("a body beyond HAProxy's buffer: got %d %.300s", resp.StatusCode, body)
	}
	resp, err := http.Get(url + "/v1/models")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("other routes: %v, %v", resp, err)
	}
	resp.Body.Close()
	released(t, s)
}

// released waits until the router holds no booking.
func released(t *testing.T, s *stack.Stack) {
	t.Helper()
	last := ""
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		resp, err := http.Get("http://" + s.Admin + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		held := false
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "kvpilot_load_reservations") && !strings.Contains(line, "_total") && !strings.HasSuffix(strings.TrimSpace(line), " 0") {
				held, last = true, line
			}
		}
		if !held {
			return
		}
	}
	t.Errorf("a booking is left: %s", last)
}

func TestTrueStatusCodesReachTheClient(t *testing.T) {
	program(t)
	s := stack.Start(t, stack.Options{})
	url := start(t, s.HTTP)
	for name, c := range map[string]struct {
		body   string
		status int
	}{
		"bad JSON":      {`{"model":`, http.StatusBadRequest},
		"unknown model": {`{"model":"nobody","messages":[{"role":"user","content":"x"}]}`, http.StatusNotFound},
		"the engine's":  {`{"model":"sim","messages":[{"role":"user","content":"x"}],"max_tokens":-5}`, http.StatusBadRequest},
	} {
		resp, body := post(t, url+"/v1/chat/completions", c.body)
		if resp.StatusCode != c.status || !strings.Contains(body, `"message"`) {
			t.Errorf("%s: got %d %s, want %d", name, resp.StatusCode, body, c.status)
		}
	}
	gone := start(t, "127.0.0.1:1")
	if resp, body := post(t, gone+"/v1/chat/completions", fmt.Sprintf(chat, "hi", false)); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || !strings.Contains(body, "router_unreachable") {
		t.Errorf("no router: got %d %s", resp.StatusCode, body)
	}
}
