package hostile

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
	"github.com/kvpilot/kvpilot/test/programs"
)

// process is the router as a process of its own, so that its memory can be measured.
type process struct {
	*proc.Process
	HTTP, GRPC, Admin string
	log               *programs.Log
}

// built is the folder of binary, once it was asked for.
var built string

// binary builds kvpilot once for all tests of the package, as a release is built: the race detector would multiply the memory that
// is measured.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "kvpilot-hostile-")
	if err != nil {
		return "", err
	}
	built = dir
	name := filepath.Join(dir, "kvpilot")
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags=-s -w", "-o", name, "../../cmd/kvpilot")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build, so that nothing is compiled twice
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return name, nil
})

// TestMain lets more tests run at once than there are processors: they wait more than they compute.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "4")
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// engine answers as a replica does and keeps nothing. Its memory is the test's, not the router's.
func engine(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, text string) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, text)
	}
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) { answer(w, `{"version":"0.32.0"}`) })
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, `{"object":"list","data":[{"id":"sim","object":"model","max_model_len":131072}]}`)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.Method != http.MethodPost || strings.Contains(r.URL.Path, "tokenize") || strings.Contains(r.URL.Path, "render") {
			http.NotFound(w, r)
			return
		}
		answer(w, `{"id":"x","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// startProcess runs kvpilot with settings in front of one replica. It is skipped where memory cannot
// be measured.
func startProcess(t *testing.T, set ...string) *process {
	t.Helper()
	return startWithin(t, 0, set...)
}

// startWithin is startProcess with a limit of open files; 0 leaves it as it is.
func startWithin(t *testing.T, files int, set ...string) *process {
	t.Helper()
	ownProcess(t)
	if runtime.GOOS != "linux" {
		t.Skip("the memory of a process is read from Linux's /proc")
	}
	if testing.Short() {
		t.Skip("builds and starts the whole router")
	}
	name, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{HTTP: programs.FreeAddress(t), GRPC: programs.FreeAddress(t), Admin: programs.FreeAddress(t), log: &programs.Log{}}
	args := []string{"serve", "--replica", engine(t), "--http", p.HTTP, "--grpc", p.GRPC, "--admin", p.Admin, "--set", "listen.drain_timeout=1s"}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	cmd := exec.Command(name, args...)
	if files > 0 {
		cmd = exec.Command("sh", append([]string{"-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, files), name}, args...)...)
	}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	if p.Process, err = proc.Start("the router", cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("the router's log ends: %s", tail(p.log.String(), 4000))
		}
	})
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get("http://" + p.HTTP + "/health")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return p
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the router does not become ready: %s", p.log)
		}
	}
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// memory is the resident memory in bytes, now and at most since its peak was reset.
func (p *process) memory(t *testing.T) (resident, peak int64) {
	t.Helper()
	resident, peak, err := proc.Memory(p.PID)
	if err != nil {
		t.Fatalf("the router is gone: %v; its log ends: %s", err, tail(p.log.String(), 4000))
	}
	return resident, peak
}

// peak runs an attack and returns by how much the router's memory grew at most, in MiB.
func (p *process) peak(t *testing.T, attack func()) int64 {
	t.Helper()
	idle, _ := p.memory(t)
	if err := proc.ResetPeak(p.PID); err != nil {
		t.Skipf("the peak of memory cannot be reset here: %v", err)
	}
	began := time.Now()
	attack()
	_, most := p.memory(t)
	grown := (most - idle) >> 20
	t.Logf("idle %d MiB, peak %d MiB above it, %s", idle>>20, grown, time.Since(began).Round(time.Millisecond))
	return grown
}

// maxGrowth is the bound on what any attack of one client machine may cost, in MiB.
const maxGrowth = 512

func (p *process) bounded(t *testing.T, attack func()) {
	t.Helper()
	if grown := p.peak(t, attack); grown > maxGrowth {
		t.Errorf("the router's memory grew by %d MiB, the bound is %d", grown, maxGrowth)
	}
	if resp, err := http.Post("http://"+p.HTTP+"/v1/chat/completions", "application/json", strings.NewReader(good)); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("afterwards an honest request gets %v %v", resp, err)
	} else {
		resp.Body.Close()
	}
}

// openAIError reads a refusal over REST.
func openAIError(t *testing.T, resp *http.Response) (message, code string) {
	t.Helper()
	defer resp.Body.Close()
	var shaped struct {
		Error struct {
			Message string `json:"message"`
			Code    any    `json:"code"`
		} `json:"error"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&shaped); err != nil || shaped.Error.Message == "" {
		t.Errorf("status %d, and not in OpenAI's shape: %v", resp.StatusCode, err)
	}
	return shaped.Error.Message, fmt.Sprint(shaped.Error.Code)
}
