package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/pki"
)

// Replicas that want TLS, a client certificate and a key get them from all that the router asks, and a reload changes them.
func TestReplicasWithTLSAndKeys(t *testing.T) {
	ours, theirs := pki.New(t, "ours"), pki.New(t, "theirs")
	cert, key := ours.Issue(pki.Cert{})
	apiKey := filepath.Join(t.TempDir(), "api-key")
	save := func(text string) {
		t.Helper()
		if err := os.WriteFile(apiKey, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	save("sesame-open\n")
	access := func(ca string) string {
		return fmt.Sprintf("  access:\n    api_key_file: %s\n    tls: {ca_file: %s, cert_file: %s, key_file: %s, server_name: engine.internal, min_version: \"1.3\"}\n", apiKey, ca, cert, key)
	}
	f := startFleet(t, fleetOptions{
		scheme: "https",
		engine: func(_ int, c *enginesim.Config) { c.APIKey = "sesame-open" },
		listen: func(l net.Listener) net.Listener {
			return tls.NewListener(l, ours.Demanding(pki.Cert{Names: []string{"engine.internal"}}, ours))
		},
		yaml: access(ours.File) + "router: {resume_streams: 1}\n",
	})
	for i := range 4 {
		a := f.post("/v1/chat/completions", conversation(fmt.Sprint("tls ", i), 1, `,"stream":true`))
		if list := a.events(); a.err != nil || a.status != http.StatusOK || len(list) == 0 || list[len(list)-1] != "[DONE]" {
			t.Errorf("status %d, %v: %s", a.status, a.err, a.body)
		}
	}
	f.eventually("statistics are read", func() bool {
		return f.metric("kvpilot_enginestats_polls_total", `outcome="ok"`) > 0 && f.metric("kvpilot_enginestats_polls_total", `outcome="failed"`) == 0
	})
	if f.metric("kvpilot_tokenizer_call_duration_seconds_count") == 0 || f.metric("kvpilot_tokenizer_endpoint_failures_total") > 0 {
		t.Errorf("%v questions to tokenizers, %v failed", f.metric("kvpilot_tokenizer_call_duration_seconds_count"), f.metric("kvpilot_tokenizer_endpoint_failures_total"))
	}
	// Trust in somebody else: said where an operator looks, and undone by the next reload.
	f.rewrite(strings.Replace(f.text, ours.File, theirs.File, 1))
	if out, err := f.cli("reload"); err != nil || !strings.Contains(out, "registry.access.tls.ca_file") {
		t.Fatalf("%s %v", out, err)
	}
	f.eventually("kvpilot replicas says why", func() bool {
		out, err := f.cli("replicas")
		return err == nil && strings.Contains(out, `signed by an authority that is not trusted (issuer "ours")`)
	})
	f.rewrite(f.text)
	if _, err := f.cli("reload"); err != nil {
		t.Fatal(err)
	}
	f.eventually("they are ready again", func() bool { return f.metric("kvpilot_registry_replicas", `state="ready"`) == 2 })
	// A key that replicas do not know, from the same file.
	save("another-key\n")
	if out, err := f.cli("reload"); err != nil || !strings.Contains(out, "registry.access.api_key_file") {
		t.Fatalf("%s %v", out, err)
	}
	f.eventually("the new key is sent", func() bool {
		out, err := f.cli("replicas")
		return err == nil && strings.Contains(out, "status 401")
	})
	save("sesame-open\n")
	// A certificate that is gone is refused, and the old one stays.
	f.rewrite(strings.Replace(f.text, cert, cert+"-gone", 1))
	if _, err := f.cli("reload"); err == nil || !strings.Contains(err.Error(), "registry.access.tls.cert_file") {
		t.Errorf("a missing certificate: %v", err)
	}
	f.rewrite(f.text)
	if _, err := f.cli("reload"); err != nil {
		t.Fatal(err)
	}
	f.eventually("they answer again", func() bool {
		return f.post("/v1/chat/completions", conversation("after", 1, "")).status == http.StatusOK
	})
	if strings.Contains(f.log.String(), "sesame") || strings.Contains(f.log.String(), "another-key") {
		t.Error("the log shows a key")
	}
}

// Without keys, a door that others can reach is worth a warning; with keys it is not.
func TestAStartWithoutKeysBeyondTheLoopbackWarns(t *testing.T) {
	const warning = "any client that can reach this address may use it"
	for name, c := range map[string]struct {
		args []string
		want int
	}{
		"loopback":             {nil, 0},
		"all addresses":        {[]string{"--http", ":0", "--admin", "0.0.0.0:0"}, 2},
		"all addresses, keyed": {[]string{"--http", ":0", "--set", "api.keys_file=" + keysFile(t)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFleet(t, fleetOptions{replicas: 1, args: c.args, key: "ops-key-1234"})
			if n := strings.Count(f.log.String(), warning); n != c.want {
				t.Errorf("%d warnings, want %d:\n%s", n, c.want, f.log)
			}
		})
	}
}

func keysFile(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(name, []byte("ops:ops-key-1234:admin\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
