package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/internal/proc"
	"github.com/kvpilot/kvpilot/test/programs"
	"github.com/kvpilot/kvpilot/test/stack"
)

// envoys are the programs under test, by version: ENVOY_BINARIES lists them as version=path.
func envoys(t *testing.T) map[string]string {
	t.Helper()
	list := strings.Fields(os.Getenv("ENVOY_BINARIES"))
	if len(list) == 0 {
		t.Skip("a real Envoy: set ENVOY_BINARIES to version=path, as make test-envoy does")
	}
	found := map[string]string{}
	for _, one := range list {
		version, path, _ := strings.Cut(one, "=")
		found[version] = path
	}
	return found
}

// eachEnvoy runs a test with each of them.
func eachEnvoy(t *testing.T, test func(t *testing.T, binary string)) {
	for version, binary := range envoys(t) {
		t.Run(version, func(t *testing.T) { test(t, binary) })
	}
}

// envoyConfig is what a test changes of deploy/envoy/envoy.yaml.
type envoyConfig struct {
	pickers  []string
	replicas []string
	// change replaces text of the file, which must be there.
	change map[string]string
}

// envoy is one that runs with deploy/envoy/envoy.yaml.
type envoy struct {
	t          *testing.T
	url, admin string
	process    *proc.Process
}

// lbEndpoints are endpoints as the file writes them.
func lbEndpoints(t *testing.T, addresses []string) string {
	t.Helper()
	var text strings.Builder
	for _, at := range addresses {
		host, port, err := net.SplitHostPort(at)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "              - endpoint: {address: {socket_address: {address: %s, port_value: %s}}}\n", host, port)
	}
	return text.String()
}

func (c envoyConfig) text(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("../../deploy/envoy/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	replace := func(from, to string) {
		if strings.Count(text, from) == 0 {
			t.Fatalf("deploy/envoy/envoy.yaml has no %q", from)
		}
		text = strings.ReplaceAll(text, from, to)
	}
	replace("{address: 127.0.0.1, port_value: 9901}", "{address: 127.0.0.1, port_value: 0}")
	replace("{address: 0.0.0.0, port_value: 8080}", "{address: 127.0.0.1, port_value: 0}")
	replace("              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 8000}}}\n", lbEndpoints(t, c.replicas))
	replace("              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 9002}}}\n", lbEndpoints(t, c.pickers))
	for from, to := range c.change {
		replace(from, to)
	}
	return text
}

// startEnvoy runs Envoy until the test ends.
func startEnvoy(t *testing.T, binary string, c envoyConfig) *envoy {
	t.Helper()
	dir := t.TempDir()
	file, adminFile := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	if err := os.WriteFile(file, []byte(c.text(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	log := &programs.Log{}
	cmd := exec.CommandContext(t.Context(), binary, "-c", file, "--admin-address-path", adminFile, "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning")
	cmd.Stdout, cmd.Stderr = log, log
	p, err := proc.Start("envoy", cmd)
	if err != nil {
		t.Fatal(err)
	}
	e := &envoy{t: t, process: p}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("Envoy said:\n%s", log)
		}
	})
	eventually(t, "Envoy has its admin address", func() bool {
		raw, err := os.ReadFile(adminFile)
		e.admin = "http://" + strings.TrimSpace(string(raw))
		return err == nil && len(raw) > 0
	})
	eventually(t, "Envoy listens", func() bool {
		var list struct {
			Statuses []struct {
				Address struct {
					Socket struct {
						Port int `json:"port_value"`
					} `json:"socket_address"`
				} `json:"local_address"`
			} `json:"listener_statuses"`
		}
		resp, err := http.Get(e.admin + "/listeners?format=json")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		if json.NewDecoder(resp.Body).Decode(&list) != nil || len(list.Statuses) == 0 || list.Statuses[0].Address.Socket.Port == 0 {
			return false
		}
		e.url = "http://127.0.0.1:" + strconv.Itoa(list.Statuses[0].Address.Socket.Port)
		return true
	})
	e.await(len(c.pickers))
	return e
}

// await waits until Envoy finds n pickers healthy.
func (e *envoy) await(n int) {
	e.t.Helper()
	eventually(e.t, fmt.Sprintf("Envoy finds %d pickers healthy", n), func() bool {
		resp, err := http.Get(e.admin + "/stats?filter=cluster.kvpilot.membership_healthy")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return err == nil && strings.HasSuffix(strings.TrimSpace(string(text)), fmt.Sprintf(" %d", n))
	})
}

// call sends a request through Envoy and reads the whole answer.
func (e *envoy) call(ctx context.Context, method, path, body string) (*http.Response, string, error) {
	req, err := http.NewRequestWithContext(ctx, method, e.url+path, strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp, string(text), err
}

// modes are the ways in which a gateway may be told to send bodies.
func envoyModes() map[string]map[string]string {
	const request, response = "request_body_mode: FULL_DUPLEX_STREAMED\n                        request_trailer_mode: SEND", "response_body_mode: FULL_DUPLEX_STREAMED\n                        response_trailer_mode: SEND"
	return map[string]map[string]string{
		"duplex":                           {},
		"duplex, the answer's head only":   {response: "response_body_mode: NONE\n                        response_trailer_mode: SKIP"},
		"buffered":                         {request: "request_body_mode: BUFFERED\n                        request_trailer_mode: SKIP", response: "response_body_mode: NONE\n                        response_trailer_mode: SKIP"},
		"buffered, the answer in a stream": {request: "request_body_mode: BUFFERED\n                        request_trailer_mode: SKIP", response: "response_body_mode: STREAMED\n                        response_trailer_mode: SKIP"},
		"buffered both ways":               {request: "request_body_mode: BUFFERED\n                        request_trailer_mode: SKIP", response: "response_body_mode: BUFFERED\n                        response_trailer_mode: SKIP"},
	}
}

func TestEnvoySendsRequestsWhereThePickerSays(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		s := start(t, 2, secured, aliased)
		for name, change := range envoyModes() {
			t.Run(name, func(t *testing.T) {
				e := startEnvoy(t, binary, envoyConfig{pickers: []string{s.EPP}, change: change, replicas: addresses(s)})
				for _, stream := range []bool{false, true} {
					resp, text, err := e.call(t.Context(), http.MethodPost, "/v1/chat/completions", ask("hello", stream).body)
					if err != nil || resp.StatusCode != 200 || stream != strings.HasSuffix(text, "data: [DONE]\n\n") || resp.Header.Get("X-Kvpilot-Replica") == "" {
						t.Errorf("stream %v: %v, %v %.300q", stream, err, resp, text)
					}
				}
				renamed := strings.Replace(ask("hello", false).body, `"sim"`, `"a-rather-long-alias"`, 1)
				if resp, text, err := e.call(t.Context(), http.MethodPost, "/v1/chat/completions", renamed); err != nil || resp.StatusCode != 200 {
					t.Errorf("a body that changes: %v, %v %.300q", err, resp, text)
				}
				if resp, text, err := e.call(t.Context(), http.MethodGet, "/v1/models", ""); err != nil || resp.StatusCode != 200 || !strings.Contains(text, `"sim"`) {
					t.Errorf("GET: %v, %v %.300q", err, resp, text)
				}
				resp, text, err := e.call(t.Context(), http.MethodPost, "/v1/messages", `{"model":"nobody","messages":[]}`)
				if err != nil || resp.StatusCode != 404 || !strings.HasPrefix(text, `{"type":"error"`) || resp.Header.Get("X-Kvpilot-Reason") != "MODEL_NOT_FOUND" {
					t.Errorf("an unknown model: %v, %v %.300q", err, resp, text)
				}
				settled(t, s)
			})
		}
		if n := metric(t, s, "kvpilot_epp_requests_total", `result="failed"`); n != 0 {
			t.Errorf("%v streams broke the protocol", n)
		}
	})
}

// A body of any size arrives as it was sent, in both directions.
func TestEnvoyPassesLongBodies(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		echo := startEcho(t)
		s := stack.Start(t, stack.Options{Existing: []string{echo}, Configure: configure(secured)})
		e := startEnvoy(t, binary, envoyConfig{pickers: []string{s.EPP}, replicas: addresses(s)})
		for _, size := range []int{1, 60_000, 70_000, 1_200_000, 3_000_000} {
			body := fmt.Sprintf(`{"model":"m","prompt":"%s"}`, strings.Repeat("0123456789", size/10+1))
			resp, text, err := e.call(t.Context(), http.MethodPost, "/v1/completions", body)
			if err != nil || resp.StatusCode != 200 || text != body {
				t.Errorf("a body of %d bytes came back with %d bytes: %v, %v", len(body), len(text), err, resp)
			}
		}
		settled(t, s)
	})
}

func TestNothingStaysBookedWhenEnvoysClientLeaves(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		s := startSlow(t, 1, secured, holding)
		e := startEnvoy(t, binary, envoyConfig{pickers: []string{s.EPP}, replicas: addresses(s)})
		t.Run("in the middle of its body", func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"model\":")
			eventually(t, "the picker has the request", func() bool { return metric(t, s, "kvpilot_epp_streams") == 1 })
			conn.Close()
			settled(t, s)
		})
		t.Run("in the middle of the answer", func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/v1/chat/completions", strings.NewReader(long().body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if _, err := resp.Body.Read(make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
			leave()
			settled(t, s)
			eventually(t, "the engine has aborted the request", func() bool { return running(t, s) == 0 })
		})
		t.Run("while it waits", func(t *testing.T) {
			free := occupy(t, s, 7)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _, _ = e.call(ctx, http.MethodPost, "/v1/chat/completions", ask("waiting", true).body) // it leaves
			}()
			eventually(t, "the request waits", func() bool { return metric(t, s, "kvpilot_admission_requests") == 1 })
			leave()
			<-done
			eventually(t, "the request has left the queue", func() bool { return metric(t, s, "kvpilot_admission_requests") == 0 })
			free()
			settled(t, s)
		})
		t.Run("another one is sent when its turn comes", func(t *testing.T) {
			free := occupy(t, s, 8)
			done := make(chan error, 1)
			go func() {
				resp, text, err := e.call(t.Context(), http.MethodPost, "/v1/chat/completions", ask("waiting", true).body)
				if err == nil && (resp.StatusCode != 200 || !strings.HasSuffix(text, "[DONE]\n\n")) {
					err = errors.New(text)
				}
				done <- err
			}()
			eventually(t, "the request waits", func() bool { return metric(t, s, "kvpilot_admission_requests") == 1 })
			free()
			if err := <-done; err != nil {
				t.Error(err)
			}
			settled(t, s)
		})
	})
}

func TestNothingStaysBookedWhenAReplicaFailsBehindEnvoy(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		s := start(t, 1, secured)
		e := startEnvoy(t, binary, envoyConfig{pickers: []string{s.EPP}, replicas: addresses(s)})
		const ids = `{"model":"sim","prompt":[1,2,3],"max_tokens":50,"ignore_eos":true,"stream":true}` // no tokenizer route meets the fault
		for name, fault := range map[string]string{"before the first byte": `{"cut":true,"paths":["/v1/completions"],"times":1}`, "after it": `{"die_after":2,"paths":["/v1/completions"],"times":1}`} {
			faults(t, s.Replicas[0], fault)
			resp, text, err := e.call(t.Context(), http.MethodPost, "/v1/completions", ids)
			if err == nil && resp.StatusCode == 200 && strings.HasSuffix(text, "[DONE]\n\n") {
				t.Errorf("%s: the answer is whole: %.200q", name, text)
			}
			settled(t, s)
			eventually(t, "requests are served again", func() bool {
				resp, _, err := e.call(t.Context(), http.MethodPost, "/v1/chat/completions", ask("again", true).body)
				return err == nil && resp.StatusCode == 200
			})
			settled(t, s)
		}
	})
}

// A gateway's failure mode decides what becomes of requests while no picker is there.
func TestEnvoyWithoutAPicker(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		for name, open := range map[string]bool{"FailOpen": true, "FailClose": false} {
			t.Run(name, func(t *testing.T) {
				s := start(t, 2) // its own picker is not used
				p := newPicker(t, s)
				p.start()
				e := startEnvoy(t, binary, envoyConfig{pickers: []string{p.address}, replicas: addresses(s), change: map[string]string{
					"failure_mode_allow: false": fmt.Sprintf("failure_mode_allow: %v", open),
				}})
				ok := func() (int, bool) {
					resp, text, err := e.call(t.Context(), http.MethodPost, "/v1/chat/completions", ask("x", true).body)
					if err != nil {
						return 0, false
					}
					return resp.StatusCode, resp.StatusCode == 200 && strings.HasSuffix(text, "[DONE]\n\n")
				}
				if code, served := ok(); !served {
					t.Fatalf("with a picker: %d", code)
				}
				p.kill()
				e.await(0) // until then, Envoy fails requests whose body it has sent to a dead picker, in either mode
				for range 5 {
					if code, served := ok(); served != open {
						t.Errorf("without a picker: %d, served %v", code, served)
					}
				}
				p.start()
				e.await(1)
				eventually(t, "the picker is asked again", func() bool {
					resp, _, err := e.call(t.Context(), http.MethodPost, "/v1/chat/completions", ask("x", true).body)
					return err == nil && resp.StatusCode == 200 && resp.Header.Get("X-Kvpilot-Replica") != ""
				})
			})
		}
	})
}

// A stream that has begun when its picker is killed may end; requests after it may not fail while another picker is there.
func TestEnvoyWithTwoPickers(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		s := start(t, 2, secured)
		p := newPicker(t, s)
		p.start()
		e := startEnvoy(t, binary, envoyConfig{pickers: []string{s.EPP, p.address}, replicas: addresses(s)})
		send := func() error {
			resp, text, err := e.call(t.Context(), http.MethodPost, "/v1/chat/completions", ask("x", true).body)
			if err == nil && (resp.StatusCode != 200 || !strings.HasSuffix(text, "[DONE]\n\n")) {
				err = fmt.Errorf("%d %s", resp.StatusCode, text)
			}
			return err
		}
		for range 20 {
			if err := send(); err != nil {
				t.Error(err)
			}
		}
		if n := metric(t, s, "kvpilot_epp_requests_total", `result="sent"`); n == 0 || n == 20 {
			t.Errorf("one picker was asked about %v of 20 requests", n)
		}
		p.kill()
		for range 20 {
			if err := send(); err != nil {
				t.Errorf("after the other picker was killed: %v", err)
			}
		}
		settled(t, s)
	})
}
