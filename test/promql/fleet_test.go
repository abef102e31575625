package promql

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
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

// patience bounds every wait; only what is broken meets it.
const patience = 60 * time.Second

// process is a running kvpilot command.
type process struct {
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

// start runs the binary that make built until the test ends.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	binary := os.Getenv("PROMQL_BINARY")
	if binary == "" {
		t.Skip("SKIPPED: PROMQL_BINARY names no binary; make test-promql builds one")
	}
	p := new(process)
	command := exec.Command(binary, args...)
	command.Stdout, command.Stderr = p, p
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill() // it may have ended
		_ = command.Wait()
		if t.Failed() {
			text := p.text()
			t.Logf("%s wrote:\n%s", args[0], text[max(0, len(text)-4000):])
		}
	})
	return p
}

// freePorts returns ports of the loopback that nothing listens on. They lie below those that a system hands out by itself, so that no
// other process that asks for any port gets one of them before the router does.
func freePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range 200 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)))
		if err != nil {
			continue
		}
		defer l.Close() // held until all are known, so that they differ
		if ports = append(ports, l.Addr().(*net.TCPAddr).Port); len(ports) == n {
			return ports
		}
	}
	t.Fatalf("no %d free ports", n)
	return nil
}

// fleet is two routers that decide as one before simulated replicas, every one a process of its own.
type fleet struct {
	routers []router
}

type router struct{ http, admin string } // addresses

// simulated are the addresses of HTTP, events and replays that a simulated replica prints.
var simulated = regexp.MustCompile(`(http://\S+)  model .*, events (tcp://\S+), replays (tcp://\S+)\n`)

var serving = regexp.MustCompile(`msg=serving http=(\S+) grpc=\S+ admin=(\S+)`)

func startFleet(t *testing.T, replicas int, settings ...string) *fleet {
	t.Helper()
	config := "tenants: {default: {tokens_per_minute: 100000000}}\nregistry:\n  probe: {interval: 250ms, max_interval: 1s}\n  replicas:\n"
	for i := range replicas {
		sim := start(t, "sim", "--port", "0", "--events-port", "0", "--replay-port", "0", "--speed", "20", "--model", "m")
		var at []string
		eventually(t, "the simulated replica says its addresses", func() bool { at = simulated.FindStringSubmatch(sim.text()); return at != nil })
		config += fmt.Sprintf("    - id: gpu-%c\n      url: %s\n      events: {endpoint: %q, replay: %q}\n", 'a'+i, at[1], at[2], at[3])
	}
	file := filepath.Join(t.TempDir(), "kvpilot.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	f := new(fleet)
	members := freePorts(t, 4)
	for i := range 2 {
		args := []string{"serve", "--config", file, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"}
		for _, s := range append([]string{
			"fleet.name=router-" + fmt.Sprint(i), "fleet.key=a key for tests alone", fmt.Sprintf("fleet.listen=127.0.0.1:%d", members[2*i]),
			fmt.Sprintf("fleet.rpc_listen=127.0.0.1:%d", members[2*i+1]), fmt.Sprintf("fleet.join=127.0.0.1:%d", members[0]),
		}, settings...) {
			args = append(args, "--set", s)
		}
		p := start(t, args...)
		eventually(t, "the router serves", func() bool {
			m := serving.FindStringSubmatch(p.text())
			if m != nil {
				f.routers = append(f.routers, router{m[1], m[2]})
			}
			return m != nil
		})
	}
	for _, r := range f.routers {
		eventually(t, "every replica is ready, and the other router is known", func() bool {
			return strings.Count(get("http://"+r.http+"/kvpilot/v1/replicas"), "REPLICA_STATE_READY") == replicas &&
				strings.Contains(get("http://"+r.admin+"/metrics"), `kvpilot_peers_members{state="alive"} 2`)
		})
	}
	return f
}

// get returns the body of an answer, empty without one.
func get(url string) string {
	resp, err := http.Get(url)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(text)
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if done() {
			return
		}
	}
	t.Fatalf("%s: not within %s", what, patience)
}

// traffic is what every scrape finds more of: streams and whole answers of conversations, and failures.
func (f *fleet) traffic(t *testing.T, round int) {
	t.Helper()
	system := strings.Repeat("You know all of this customer's rules by heart. ", 40)
	var wg sync.WaitGroup
	for who := range 4 {
		for _, more := range []string{`"stream":true,"stream_options":{"include_usage":true}`, `"n":1`} {
			body := fmt.Sprintf(`{"model":"m","max_tokens":8,%s,"messages":[{"role":"system","content":%q},{"role":"user","content":"Question %d of %d."}]}`, more, system, round, who)
			wg.Go(func() { f.routers[who%2].post(t, body, http.StatusOK) })
		}
	}
	wg.Go(func() { f.routers[max(0, round)%2].post(t, `{"model":"nobody","messages":[]}`, http.StatusNotFound) })
	wg.Wait()
}

func (r router) post(t *testing.T, body string, want int) {
	resp, err := http.Post("http://"+r.http+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != want {
		t.Errorf("status %d, want %d: %.300s %v", resp.StatusCode, want, text, err)
	}
}
