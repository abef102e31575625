package walk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/test/programs"
)

// patience bounds every wait; only what is broken meets it.
const patience = time.Minute

const root = "../.."

// walker is a shell at the place where a page's reader is.
type walker struct {
	t        *testing.T
	folder   string
	env      []string
	ports    *strings.Replacer
	decision string // the last id that an answer named
}

func newWalker(t *testing.T, binary string) *walker {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("SKIPPED: no bash")
	}
	w := &walker{t: t, folder: t.TempDir()}
	if err := os.Mkdir(filepath.Join(w.folder, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(binary, filepath.Join(w.folder, "bin", "kvpilot")); err != nil {
		t.Fatal(err)
	}
	engines := enginePorts(t)
	first := freePorts(t, 3)
	p := []int{first, first + 1, first + 2}
	w.ports = strings.NewReplacer(
		"go run ./cmd/kvpilot", "kvpilot",
		"demo --serve", fmt.Sprintf("demo --serve --http 127.0.0.1:%d --grpc 127.0.0.1:%d --admin 127.0.0.1:%d", p[0], p[1], p[2]),
		"sim --count 2", fmt.Sprintf("sim --count 2 --port %d", engines), "sim --ranks 4", fmt.Sprintf("sim --ranks 4 --port %d", engines),
		"localhost:8080", fmt.Sprintf("127.0.0.1:%d", p[0]),
		"127.0.0.1:8080", fmt.Sprintf("127.0.0.1:%d", p[0]), "127.0.0.1:9090", fmt.Sprintf("127.0.0.1:%d", p[1]), "127.0.0.1:9091", fmt.Sprintf("127.0.0.1:%d", p[2]),
		"127.0.0.1:8000", fmt.Sprintf("127.0.0.1:%d", engines), "127.0.0.1:8001", fmt.Sprintf("127.0.0.1:%d", engines+1))
	w.env = append(os.Environ(), "PATH="+filepath.Join(w.folder, "bin")+":"+os.Getenv("PATH"), "HOME="+w.folder, fmt.Sprintf("KVPILOT_ADDRESS=127.0.0.1:%d", p[1]),
		fmt.Sprintf("KV=127.0.0.1:%d", p[0]), fmt.Sprintf("KVG=127.0.0.1:%d", p[1]), fmt.Sprintf("KVPILOT_LISTEN_HTTP=127.0.0.1:%d", p[0]), fmt.Sprintf("KVPILOT_LISTEN_GRPC=127.0.0.1:%d", p[1]), fmt.Sprintf("KVPILOT_LISTEN_ADMIN=127.0.0.1:%d", p[2]))
	return w
}

var (
	named = regexp.MustCompile(`(?i:X-Kvpilot-Decision: |"decision_id":")([0-9a-f]{24})`)
	id    = regexp.MustCompile(`\b[0-9a-f]{24}\b`)
)

// start runs a command in a process group of its own, until the test ends at the latest.
func (w *walker) start(ctx context.Context, c command) (*exec.Cmd, *programs.Log) {
	w.t.Helper()
	text := w.ports.Replace(c.text)
	if w.decision != "" {
		text = id.ReplaceAllString(text, w.decision)
	}
	out := new(programs.Log)
	cmd := exec.CommandContext(ctx, "bash", "-e", "-o", "pipefail", "-c", text)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = w.folder, w.env, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	return cmd, out
}

// run does what a page says in c. The returned function ends what c left running; nil when it left nothing.
func (w *walker) run(c command) (stop func()) {
	w.t.Helper()
	if c.how == "needs" {
		if _, err := exec.LookPath(c.what); err != nil {
			w.t.Logf("line %d is not run: no %s here", c.line, c.what)
			return nil
		}
	}
	if c.how == "until" {
		return w.leave(c)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd, out := w.start(ctx, c)
	err := cmd.Wait()
	if err != nil {
		w.t.Fatalf("line %d: %v\n%s%s", c.line, errors.Join(err, ctx.Err()), c.text, out)
	}
	if c.how == "prints" && !strings.Contains(out.String(), c.what) {
		w.t.Errorf("line %d does not print %q:\n%s%s", c.line, c.what, c.text, out)
	}
	if m := named.FindStringSubmatch(out.String()); m != nil {
		w.decision = m[1]
	}
	return nil
}

// leave starts c, waits for the text that it prints when it is ready, and lets it run.
func (w *walker) leave(c command) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd, out := w.start(ctx, c)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop = func() { cancel(); <-ended }
	limit := time.NewTimer(patience)
	defer limit.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for !strings.Contains(out.String(), c.what) {
		select {
		case err := <-ended:
			cancel()
			w.t.Fatalf("line %d ended: %v\n%s%s", c.line, err, c.text, out)
		case <-limit.C:
			stop()
			w.t.Fatalf("line %d never printed %q:\n%s%s", c.line, c.what, c.text, out)
		case <-look.C:
		}
	}
	return stop
}

// before starts what the pages assume that say of no command that it starts a router: two replicas gpu-1 and gpu-2 of the model m,
// a router before them, and a request.
const before = "<!-- walk: until model m, as vLLM -->\n```sh\nkvpilot sim --count 2 --model m\n```\n" + `
` + "```sh\n" + `cat > kvpilot.yaml <<'END'
registry:
  registration: {enabled: true}
  replicas:
    - {id: gpu-1, url: "http://127.0.0.1:8000"}
    - {id: gpu-2, url: "http://127.0.0.1:8001"}
END
echo '{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":5}' > request.json
` + "```\n<!-- walk: until state=exact -->\n```sh\nkvpilot serve --config kvpilot.yaml\n```\n```sh\n" +
	"for id in gpu-1 gpu-2; do until curl -s localhost:8080/kvpilot/v1/replicas/$id | grep -q STATE_READY; do sleep 0.05; done; done\n```\n"

func TestThePagesCommandsWork(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it starts whole programs")
	}
	binary := filepath.Join(t.TempDir(), "kvpilot")
	build := exec.Command("go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags=-s -w", "-o", binary, "./cmd/kvpilot")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0") // as make build, so that nothing is compiled twice
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, needs := range map[string]string{
		"README.md": "", "docs/quickstart.md": "", "docs/topologies.md": "",
		"docs/api.md": before, "docs/lifecycle.md": before, "docs/replicas.md": before, "docs/operations.md": before, "docs/simulator.md": before, "docs/doctor.md": before,
		"docs/security.md": before, "docs/tracing.md": before, "docs/tokenization.md": before, "docs/kv-events.md": before, "docs/kv-index.md": before,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			page, err := os.ReadFile(filepath.Join(root, name))
			if err != nil {
				t.Fatal(err)
			}
			first, err := commandsOf(needs)
			if err != nil {
				t.Fatal(err)
			}
			commands, err := commandsOf(string(page))
			if err != nil {
				t.Fatal(err)
			}
			commands = append(first, commands...)
			w := newWalker(t, binary)
			ran := 0
			for _, c := range commands {
				if c.how == "skip" {
					continue
				}
				ran++
				if stop := w.run(c); stop != nil {
					t.Cleanup(stop)
				}
			}
			if ran < len(first)+1 || ran < 3 {
				t.Errorf("only %d of %d commands were run", ran, len(commands))
			}
		})
	}
}

func TestWhatAPageMayNotSay(t *testing.T) {
	for name, page := range map[string]string{
		"a fence without a language": "```\nls\n```\n",
		"an unknown word":            "<!-- walk: perhaps -->\n```sh\nls\n```\n",
		"a comment without a fence":  "<!-- walk: prints x -->\n\n```sh\nls\n```\n",
	} {
		if list, err := commandsOf(page); err == nil {
			t.Errorf("%s: %v", name, list)
		}
	}
	list, err := commandsOf("a\n```json\n{}\n```\n<!-- walk: prints x y -->\n```sh\nls\nls -l\n```\n")
	if err != nil || len(list) != 1 || list[0] != (command{7, "ls\nls -l\n", "prints", "x y"}) {
		t.Errorf("%+v, %v", list, err)
	}
}

// given are the ports that a page has; pages are walked at the same time.
var (
	given   = map[int]bool{} // guarded by givenMu
	givenMu sync.Mutex
)

// consecutive reports whether n ports from first on are free at the loopback, and no other page has them; then they are this one's.
func consecutive(first, n int) bool {
	givenMu.Lock()
	defer givenMu.Unlock()
	for i := range n {
		if given[first+i] {
			return false
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+i))
		if err != nil {
			return false
		}
		l.Close()
	}
	for i := range n {
		given[first+i] = true
	}
	return true
}

// freePorts returns the first of n free ports. They lie below those that a system hands out by itself, so that no other test that
// asks for any port gets one of them before the page's commands do.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	for range 200 {
		if first := 10_000 + rand.IntN(5_000); consecutive(first, n) {
			return first
		}
	}
	t.Fatalf("no %d free ports", n)
	return 0
}

// enginePorts returns the first port of two simulated replicas, or of one with four ranks: those of HTTP, events and replays are
// free, the latter as far from it as vLLM's examples from 8000.
func enginePorts(t *testing.T) int {
	t.Helper()
	for range 200 {
		if first := 20_000 + rand.IntN(10_000); consecutive(first, 2) && consecutive(first+5557-8000, 4) && consecutive(first+5657-8000, 4) {
			return first
		}
	}
	t.Fatal("no free ports for two replicas")
	return 0
}
