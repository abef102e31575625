package direct

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// haproxy starts HAProxy with what is shipped in deploy/haproxy.
type haproxy struct{}

func (haproxy) program(t *testing.T) string {
	t.Helper()
	return find(t, "haproxy", "apt install haproxy")
}

func (p haproxy) start(t *testing.T, router string, o proxyOptions) string {
	t.Helper()
	name, address := p.program(t), freeAddress(t)
	dir := deployed(t, "haproxy")
	cmd := exec.CommandContext(t.Context(), name, "-db", "-f", filepath.Join(dir, "haproxy.cfg"))
	cmd.Env = append(os.Environ(), "KVPILOT_URL=http://"+router, "KVPILOT_ADDRESS="+router, "KVPILOT_BIND="+address,
		"KVPILOT_LUA="+filepath.Join(dir, "kvpilot.lua"), "KVPILOT_API_KEY="+o.key)
	if o.lease > 0 {
		cmd.Env = append(cmd.Env, "KVPILOT_LEASE_MS="+strconv.FormatInt(o.lease.Milliseconds(), 10))
	}
	return launch(t, cmd, address)
}

func TestHAProxy(t *testing.T) {
	haproxy{}.program(t)
	testProxy(t, haproxy{})
}

// TestHAProxyKeepsBookingsAlive watches the batched reports that let a lease be shorter than an answer.
func TestHAProxyKeepsBookingsAlive(t *testing.T) {
	haproxy{}.program(t)
	if testing.Short() {
		t.Skip("an answer of some seconds")
	}
	s := startStack(t, 1)
	url := haproxy{}.start(t, s.HTTP, proxyOptions{lease: 9 * time.Second})
	slow(t, s, time.Minute)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	resp, err := ask(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		io.Copy(io.Discard, resp.Body) //nolint:errcheck // it is left in the middle
	}()
	waitFor(t, "reports of progress", func() bool {
		return metric(t, s, "kvpilot_load_reports_total", `call="progress"`, `outcome="applied"`) >= 2
	})
	leave()
	<-drained
	waitFor(t, "the engine gives the request up", func() bool { return running(t, s) == 0 })
	released(t, s)
}
