package direct

import (
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

// TestHAProxyKeepsBookingsAlive lets an answer take longer than the lease: the batched reports renew it.
func TestHAProxyKeepsBookingsAlive(t *testing.T) {
	haproxy{}.program(t)
	if testing.Short() {
		t.Skip("an answer of ten seconds")
	}
	s := startStack(t, 1)
	url := haproxy{}.start(t, s.HTTP, proxyOptions{lease: 4 * time.Second})
	slow(t, s, 10*time.Second)
	resp, body := post(t, url+"/v1/chat/completions", long)
	if resp.StatusCode != 200 {
		t.Fatalf("got %d %s", resp.StatusCode, body)
	}
	released(t, s)
	if n := metric(t, s, "kvpilot_load_ended_total", `reason="expired"`); n != 0 {
		t.Errorf("%v bookings ended with their lease while their answer went on", n)
	}
	if n := metric(t, s, "kvpilot_load_reports_total", `call="progress"`, `outcome="applied"`); n == 0 {
		t.Error("no progress was reported")
	}
}
