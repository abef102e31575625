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

	"github.com/kvpilot/kvpilot/test/programs"
)

// haproxy starts HAProxy with what is shipped in deploy/haproxy.
type haproxy struct{}

func (haproxy) program(t *testing.T) string {
	t.Helper()
	return find(t, "haproxy", "apt install haproxy")
}

func (p haproxy) start(t *testing.T, o proxyOptions, routers ...string) string {
	t.Helper()
	name, address, dir := p.program(t), programs.FreeAddress(t), t.TempDir()
	text, err := os.ReadFile(filepath.Join(deployed(t, "haproxy"), "haproxy.cfg"))
	if err != nil {
		t.Fatal(err)
	}
	config := string(text)
	if o.cert != "" { // as the comment below this line says
		pem := filepath.Join(dir, "api.pem")
		join(t, pem, o.cert, o.certKey)
		config = replaced(t, config, `bind "${KVPILOT_BIND}"`, `bind "${KVPILOT_BIND}" ssl crt `+pem+` alpn h2,http/1.1`)
	}
	if o.through {
		config = replaced(t, config, " /v1/completions", "")
	}
	file := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), name, "-db", "-f", file)
	cmd.Env = append(os.Environ(), "KVPILOT_BIND="+address, "KVPILOT_ASK=abns@kvpilot-"+address,
		"KVPILOT_LUA="+filepath.Join(deployed(t, "haproxy"), "kvpilot.lua"), "KVPILOT_API_KEY="+o.key)
	for i, router := range routers {
		cmd.Env = append(cmd.Env, []string{"KVPILOT_ADDRESS=", "KVPILOT_ADDRESS_2=", "KVPILOT_ADDRESS_3="}[i]+router)
	}
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
	url := haproxy{}.start(t, proxyOptions{lease: 9 * time.Second}, s.HTTP)
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
		io.Copy(io.Discard, resp.Body)
	}()
	waitFor(t, "reports of progress", func() bool {
		return metric(t, s, "kvpilot_load_reports_total", `call="progress"`, `outcome="applied"`) >= 2
	})
	leave()
	<-drained
	waitFor(t, "the engine gives the request up", func() bool { return running(t, s) == 0 })
	released(t, s)
}
