package console

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// process is a running kvpilot command.
type process struct {
	cmd *exec.Cmd
	mu  sync.Mutex
	log bytes.Buffer // guarded by mu
}

func (p *process) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(text)
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// start runs the binary that make built.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	binary := os.Getenv("CONSOLE_BINARY")
	if binary == "" {
		t.Skip("SKIPPED: CONSOLE_BINARY names no binary; make test-console builds one")
	}
	p := &process{cmd: exec.Command(binary, args...)}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.stop(); logOf(t, args[0], p) })
	return p
}

func logOf(t *testing.T, name string, p *process) {
	if t.Failed() {
		text := p.text()
		t.Logf("%s wrote:\n%s", name, text[max(0, len(text)-4000):])
	}
}

// stop ends the process at once, as a crash does; again does nothing.
func (p *process) stop() {
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()
}

// fleet is a router before simulated replicas, every one a process of its own.
type fleet struct {
	t        *testing.T
	router   *process
	replicas []*process
	http     string
	admin    string
}

// simulated are the addresses of HTTP, events and replays that a simulated replica prints.
var simulated = regexp.MustCompile(`(http://\S+)  model .*, events (tcp://\S+), replays (tcp://\S+)\n`)

var serving = regexp.MustCompile(`msg=serving http=(\S+) grpc=\S+ admin=(\S+)`)

func startFleet(t *testing.T, replicas int, settings ...string) *fleet {
	t.Helper()
	f := &fleet{t: t}
	config := "registry:\n  probe: {interval: 250ms, max_interval: 1s}\n  replicas:\n"
	for i := range replicas {
		sim := start(t, "sim", "--port", "0", "--events-port", "0", "--replay-port", "0",
			"--speed", "4", "--blocks", "1500", "--max-model-len", "16384", "--model", "demo-70b")
		f.replicas = append(f.replicas, sim)
		var at []string
		f.eventually("the simulated replica says its addresses", func() bool { at = simulated.FindStringSubmatch(sim.text()); return at != nil })
		config += fmt.Sprintf("    - id: gpu-%c\n      url: %s\n      events: {endpoint: %q, replay: %q}\n", 'a'+i, at[1], at[2], at[3])
	}
	if replicas == 0 {
		config += "    []\n"
	}
	file := filepath.Join(t.TempDir(), "kvpilot.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"serve", "--config", file, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--set", "telemetry.traces.ratio=1"}
	for _, s := range settings {
		args = append(args, "--set", s)
	}
	f.router = start(t, args...)
	f.eventually("the router serves", func() bool {
		m := serving.FindStringSubmatch(f.router.text())
		if m != nil {
			f.http, f.admin = m[1], m[2]
		}
		return m != nil
	})
	if replicas > 0 {
		f.eventually("every replica is ready", func() bool {
			resp, err := http.Get("http://" + f.http + "/kvpilot/v1/replicas")
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			text, _ := io.ReadAll(resp.Body)
			return bytes.Count(text, []byte("REPLICA_STATE_READY")) == replicas
		})
	}
	return f
}

func (f *fleet) eventually(what string, done func() bool) {
	f.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if done() {
			return
		}
	}
	f.t.Fatalf("%s: not within %s\n%s", what, patience, f.router.text())
}

// talk plays conversations that share their beginnings, until stop is closed.
func (f *fleet) talk(stop <-chan struct{}) *sync.WaitGroup {
	wg := new(sync.WaitGroup)
	for who := range 6 {
		wg.Go(func() {
			system := strings.Repeat(fmt.Sprintf("You work for customer %d and know all of its rules by heart. ", who%3), 60)
			for n := 0; ; n++ {
				messages := fmt.Sprintf(`{"role":"system","content":%q}`, system)
				for turn := range 3 {
					messages += fmt.Sprintf(`,{"role":"user","content":%q}`, strings.Repeat(fmt.Sprintf("Question %d of talk %d by %d. ", turn, n, who), 12))
					select {
					case <-stop:
						return
					default:
					}
					body := fmt.Sprintf(`{"model":"demo-70b","stream":true,"stream_options":{"include_usage":true},"max_tokens":24,"messages":[%s]}`, messages)
					if resp, err := http.Post("http://"+f.http+"/v1/chat/completions", "application/json", strings.NewReader(body)); err == nil {
						_, _ = io.Copy(io.Discard, resp.Body) // a stream that a dying replica cuts is part of the picture
						resp.Body.Close()
					}
					messages += fmt.Sprintf(`,{"role":"assistant","content":"Answer %d."}`, turn)
				}
			}
		})
	}
	return wg
}
