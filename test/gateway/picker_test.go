package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"

	"github.com/kvpilot/kvpilot/internal/proc"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/edge/extproc"
	"github.com/kvpilot/kvpilot/test/programs"
	"github.com/kvpilot/kvpilot/test/stack"
)

func secured(c *config.Config) { c.EPP.TLS = extproc.TLSSelfSigned }

func aliased(c *config.Config) { c.Registry.Aliases = map[string]string{"a-rather-long-alias": "sim"} }

// addresses are those of the replicas, as Envoy has them.
func addresses(s *stack.Stack) (list []string) {
	for _, url := range s.Replicas {
		list = append(list, endpoint(url))
	}
	return list
}

// running is how many requests the engines compute.
func running(t testing.TB, s *stack.Stack) (n float64) {
	t.Helper()
	for _, r := range states(t, s) {
		n += r.Running + r.Waiting
	}
	return n
}

// picker is a kvpilot process that a test kills and starts again at the same addresses.
type picker struct {
	t             *testing.T
	binary        string
	args          []string
	address, http string
	process       *proc.Process
}

// newPicker makes one for the replicas of s.
func newPicker(t *testing.T, s *stack.Stack) *picker {
	t.Helper()
	binary := os.Getenv("PICKER_BINARY")
	if binary == "" {
		t.Skip("real signals: set PICKER_BINARY, as make test-envoy does")
	}
	at, err := proc.FreeAddresses(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	p := &picker{t: t, binary: binary, address: at[0], http: at[1]}
	p.args = []string{"serve", "--set", "listen.http=" + p.http, "--set", "listen.grpc=", "--set", "listen.admin=", "--set", "epp.listen=" + p.address}
	for _, url := range s.Replicas {
		p.args = append(p.args, "--replica", url)
	}
	return p
}

// start starts the process, and returns when it is ready.
func (p *picker) start() {
	p.t.Helper()
	log := &programs.Log{}
	cmd := exec.CommandContext(p.t.Context(), p.binary, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	var err error
	if p.process, err = proc.Start("kvpilot", cmd); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		p.process.Kill()
		if p.t.Failed() {
			p.t.Logf("kvpilot said:\n%s", log)
		}
	})
	eventually(p.t, "the picker is ready", func() bool {
		resp, err := http.Get("http://" + p.http + "/health")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// kill ends the process at once.
func (p *picker) kill() { p.process.Kill() }

// startEcho starts a replica that answers each completion with its body.
func startEcho(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"vllm","root":"m","max_model_len":8388608}]}`)
	})
	mux.HandleFunc("/v1/completions", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}
