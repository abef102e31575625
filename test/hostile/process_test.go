package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// process is the router as a process of its own, so that its memory can be measured.
type process struct {
	HTTP, GRPC, Admin string
	pid               int
	log               *lockedBuffer
}

type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// binary builds kvpilot once for all tests of the package, without the race detector, which would
// multiply the memory that is measured.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "kvpilot-hostile-")
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "kvpilot")
	out, err := exec.Command("go", "build", "-trimpath", "-tags", "grpcnotrace", "-o", name, "../../cmd/kvpilot").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return name, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if name, err := binary(); err == nil && code >= 0 {
		os.RemoveAll(filepath.Dir(name))
	}
	os.Exit(code)
}

// engine answers as a replica does and keeps nothing. Its memory is the test's, not the router's.
func engine(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, text string) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, text) //nolint:errcheck // the router may be gone
	}
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) { answer(w, `{"version":"0.32.0"}`) })
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, `{"object":"list","data":[{"id":"sim","object":"model","max_model_len":131072}]}`)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // as above
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
	p := &process{HTTP: freePort(t), GRPC: freePort(t), Admin: freePort(t), log: &lockedBuffer{}}
	args := []string{"serve", "--replica", engine(t), "--http", p.HTTP, "--grpc", p.GRPC, "--admin", p.Admin, "--set", "listen.drain_timeout=1s"}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, name, args...)
	if files > 0 {
		cmd = exec.CommandContext(ctx, "sh", append([]string{"-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, files), name}, args...)...)
	}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.pid = cmd.Process.Pid
	t.Cleanup(func() {
		cancel()
		cmd.Wait() //nolint:errcheck // it was killed
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

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// status reads a field of /proc/PID/status in bytes.
func (p *process) status(t *testing.T, field string) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		t.Fatalf("the router is gone: %v; its log ends: %s", err, tail(p.log.String(), 4000))
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatalf("no %s in /proc", field)
	return 0
}

// peak runs an attack and returns by how much the router's memory grew at most, in MiB.
func (p *process) peak(t *testing.T, attack func()) int64 {
	t.Helper()
	idle := p.status(t, "VmRSS")
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.pid), []byte("5"), 0); err != nil { // VmHWM begins again
		t.Skipf("the peak of memory cannot be reset here: %v", err)
	}
	began := time.Now()
	attack()
	grown := (p.status(t, "VmHWM") - idle) >> 20
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
