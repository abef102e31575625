package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// health runs kvpilot health and returns what it printed.
func health(env []string, args ...string) (string, error) {
	var out bytes.Buffer
	err := run(context.Background(), append([]string{"health", "--timeout", "20s"}, args...), env, &out, io.Discard)
	return out.String(), err
}

// healthy waits until the router takes requests, by a command that it accepts.
func healthy(args ...string) func(*fleet) bool {
	return func(f *fleet) bool {
		_, err := health(nil, append(args, "--address", f.admin)...)
		return err == nil
	}
}

func TestHealthIsThatOfTheRouter(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 1, noEvents: true, ready: healthy()})
	if got, err := health(nil, "--address", "http://"+f.admin+"/"); err != nil || got != "ready\n" {
		t.Errorf("ready: %q, %v", got, err)
	}
	f.engines[0].SetFaults(enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Status: 500}})
	f.eventually("the router is not ready", func() bool {
		_, err := health(nil, "--address", f.admin)
		return err != nil && strings.Contains(err.Error(), f.admin+": not ready: ")
	})
	if got, err := health(nil, "--address", f.admin, "--live"); err != nil || got != "ok\n" {
		t.Errorf("a router without replicas does not live: %q, %v", got, err)
	}
	if _, err := health(nil, "--address", f.admin, "--tls"); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("with TLS: %v", err)
	}
	if _, err := health(nil, "--address", f.grpc); err == nil {
		t.Error("the gRPC address is healthy")
	}
}

func TestHealthNeedsAKeyWhereTheRouterAsksForOne(t *testing.T) {
	keyFile := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(keyFile, []byte("key-of-the-probe\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := startFleet(t, fleetOptions{
		replicas: 1, noEvents: true, ready: healthy("--key-file", keyFile),
		yaml: "admin: {keyed_health: true}\napi:\n  keys:\n    - {name: ops, key: key-of-the-probe, roles: [observe]}\n    - {name: team, key: key-of-a-team}\n",
	})
	for _, tc := range []struct {
		env, args []string
		want      string
	}{
		{nil, []string{"--key", "key-of-the-probe"}, ""},
		{[]string{"KVPILOT_KEY=key-of-the-probe"}, nil, ""},
		{[]string{"KVPILOT_KEY=key-of-a-team"}, []string{"--key-file", keyFile}, ""},
		{nil, nil, "--key-file or KVPILOT_KEY"},
		{nil, []string{"--key", "key-of-a-team"}, "the role observe"},
		{nil, []string{"--key-file", keyFile + "-of-another"}, "--key-file: "},
	} {
		for _, kind := range []string{"--live=false", "--live"} {
			_, err := health(tc.env, append(tc.args, kind, "--address", f.admin)...)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v %v %s: %v, want %q", tc.env, tc.args, kind, err, tc.want)
			}
		}
	}
}

func TestHealthOverTLS(t *testing.T) {
	a := newAuthority(t)
	a.issue(t, "server", "")
	a.issue(t, "probe", "spiffe://test/probe")
	cert := []string{"--cert", a.file("probe.pem"), "--cert-key", a.file("probe.key")}
	f := startFleet(t, fleetOptions{
		replicas: 1, noEvents: true, ready: healthy(cert...),
		yaml: fmt.Sprintf("listen: {tls_cert: %s, tls_key: %s, admin_tls: true, client_ca: %s, admin_client_auth: required}\n", a.file("server.pem"), a.file("server.key"), a.file("ca.pem")),
	})
	if _, err := health(nil, append(cert, "--ca", a.file("ca.pem"), "--address", f.admin)...); err != nil {
		t.Errorf("with the authority: %v", err)
	}
	for want, args := range map[string][]string{
		"uses TLS; set --tls":            {},
		"set --cert and --cert-key":      {"--tls"},
		"must be set together":           {"--cert", a.file("probe.pem")},
		"signed by unknown authority":    append([]string{"--ca", newAuthority(t).file("ca.pem")}, cert...),
		"--ca: ":                         {"--ca", a.file("nothing.pem")},
		`--address must be host:port, n`: {"--address", "%"},
	} {
		if _, err := health(nil, append([]string{"--address", f.admin}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}

func TestHealthOfARouterThatHangs(t *testing.T) {
	silent := listen(t)
	defer silent.Close()
	if _, err := health(nil, "--address", silent.Addr().String(), "--timeout", (50 * time.Millisecond).String()); err == nil || !strings.Contains(err.Error(), "did not answer within 50ms") {
		t.Errorf("got %v", err)
	}
	gone := listen(t)
	gone.Close()
	if _, err := health(nil, "--address", gone.Addr().String()); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("got %v", err)
	}
	if isLoopback("10.0.0.1:9091") || isLoopback("router.example.com:9091") || !isLoopback("[::1]:9091") || !isLoopback(net.JoinHostPort("localhost", "9091")) {
		t.Error("the loopback is another one")
	}
}
