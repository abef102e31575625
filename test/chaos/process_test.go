//go:build unix

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
	"github.com/kvpilot/kvpilot/test/programs"
)

// process is a kvpilot command that runs beside the test and ends with it.
type process struct {
	*proc.Process
	t    *testing.T
	url  string // of its HTTP surface
	line string // its first line of output, when it was read
	args []string
}

// binary is where the kvpilot under test lies.
func binary(t *testing.T) string {
	if os.Getenv("CHAOS_BINARY") == "" {
		t.Skip("minutes of wall-clock time and real signals: set CHAOS_BINARY to the kvpilot binary, as make chaos does")
	}
	return os.Getenv("CHAOS_BINARY")
}

// start runs kvpilot with args; one that talks says its URL in its first line of output.
func start(t *testing.T, talks bool, args ...string) *process {
	t.Helper()
	cmd := exec.Command(binary(t), args...)
	if limit := os.Getenv("CHAOS_LIMIT"); limit != "" { // of file descriptors
		cmd = exec.Command("sh", append([]string{"-c", `ulimit -n "$0" && exec "$@"`, limit, binary(t)}, args...)...)
	}
	log := &programs.Log{}
	cmd.Stderr = log
	p := &process{t: t, args: args}
	var err error
	if talks {
		var out io.Reader
		if p.Process, p.line, out, err = proc.StartTalking(args[0], cmd); err == nil {
			p.url, _, _ = strings.Cut(p.line, " ")
			go func() { _, _ = io.Copy(io.Discard, out) }() // ends with the process
		}
	} else {
		p.Process, err = proc.Start(args[0], cmd)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() && args[0] == "serve" {
			t.Logf("the router's log:\n%s", log)
		}
	})
	return p
}

// simulate starts one simulated replica.
func simulate(t *testing.T, port string, more ...string) *process {
	t.Helper()
	return start(t, true, append([]string{"sim", "--port", port, "--events-port", "0", "--no-replay"}, more...)...)
}

// serve starts the router before the replicas and waits until all are ready.
func serve(t *testing.T, replicas []*process, more ...string) *process {
	t.Helper()
	address := programs.FreeAddress(t)
	args := append([]string{"serve", "--http", address, "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--set", "telemetry.log_level=warn"}, more...)
	for _, r := range replicas {
		args = append(args, "--replica", r.url)
	}
	p := start(t, false, args...)
	p.url = "http://" + address
	p.until(20*time.Second, func() bool { return p.ready() == len(replicas) })
	return p
}

func (p *process) until(limit time.Duration, done func() bool) time.Duration {
	p.t.Helper()
	began := time.Now()
	for !done() {
		if time.Since(began) > limit {
			p.t.Fatalf("not within %s", limit)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(began)
}

// ready counts the replicas that the router calls ready.
func (p *process) ready() int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/kvpilot/v1/replicas", nil)
	req.Header.Set("X-Api-Key", operatorKey) // ignored where there are no keys
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return -1
	}
	defer resp.Body.Close()
	var list struct {
		Replicas []struct{ State string }
	}
	if json.NewDecoder(resp.Body).Decode(&list) != nil {
		return -1
	}
	n := 0
	for _, r := range list.Replicas {
		if r.State == "REPLICA_STATE_READY" {
			n++
		}
	}
	return n
}

// fault gives a simulated replica its faults.
func (p *process) fault(faults string) {
	p.t.Helper()
	resp, err := http.Post(p.url+"/sim/faults", "application/json", strings.NewReader(faults))
	if err != nil {
		p.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		p.t.Fatalf("POST /sim/faults: %s", resp.Status)
	}
}

// result is what one request of a load met.
type result struct {
	at      time.Duration // since the load began
	first   time.Duration // until its first byte
	took    time.Duration // until its end
	replica string
	status  int
	err     error
}

func (r result) String() string {
	return fmt.Sprintf("sent at %.1f s: %d from %s, first byte after %.2f s, end after %.2f s, %v", r.at.Seconds(), r.status, r.replica, r.first.Seconds(), r.took.Seconds(), r.err)
}

// ask sends one completion.
func (p *process) ask(n int, began time.Time, stream bool, limit time.Duration) (res result) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	sent := time.Now()
	res.at = sent.Sub(began)
	defer func() { res.took = time.Since(sent) }()
	body := fmt.Sprintf(`{"model":"sim","prompt":"%d: tell me a story about number %d","max_tokens":16,"ignore_eos":true,"stream":%v}`, n, n, stream)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		res.err = err
		return res
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Api-Key", operatorKey)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		res.err = err
		return res
	}
	defer resp.Body.Close()
	res.status, res.replica = resp.StatusCode, resp.Header.Get("X-Kvpilot-Replica")
	one := make([]byte, 1)
	_, err = io.ReadFull(resp.Body, one)
	res.first = time.Since(sent)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	}
	res.err = err
	return res
}

// choose asks for a replica for a prompt of so many tokens and forgets about it; it returns the status.
func (p *process) choose(number, tokens int) int {
	ids := make([]uint32, tokens)
	for i := range ids {
		ids[i] = uint32(300 + (number*7919+i)%20000)
	}
	body, err := json.Marshal(map[string]any{"model": "sim", "token_ids": map[string]any{"ids": ids}, "reports": "REPORTS_ALL"})
	if err != nil {
		p.t.Fatal(err)
	}
	resp, err := http.Post(p.url+"/kvpilot/v1/choose", "application/json", bytes.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body) // the status is enough
	return resp.StatusCode
}
