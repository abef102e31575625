package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// command runs kvpilot against the fleet's router and returns what it printed.
func (f *fleet) command(args ...string) (string, error) {
	var out bytes.Buffer
	err := run(context.Background(), args, []string{"KVPILOT_ADDRESS=" + f.grpc}, &out, io.Discard)
	return out.String(), err
}

func TestCommandsAskARunningRouter(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2})
	a := f.post("/v1/chat/completions", conversation("x", 1, ""), "X-Request-Id", "my-request")
	cached(t, a)
	body := filepath.Join(t.TempDir(), "request.json")
	if err := os.WriteFile(body, []byte(conversation("x", 1, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		args []string
		want []string
	}{
		"replicas":         {[]string{"replicas"}, []string{"r0", "r1", "ready", "exact", f.urls[0]}},
		"top":              {[]string{"top", "--times", "1"}, []string{"r0/0", "completed", a.header.Get("X-Kvpilot-Decision")}},
		"explain decision": {[]string{"explain", a.header.Get("X-Kvpilot-Decision")}, []string{"▸", "r0/0", "r1/0", "predicted-ttft", "completed"}},
		"explain request":  {[]string{"explain", "my-request"}, []string{a.header.Get("X-Kvpilot-Decision")}},
		"choose":           {[]string{"choose", "--model", "sim", "--prompt", "hello there"}, []string{"▸", "predicted-ttft"}},
		"choose by body":   {[]string{"choose", "--body", body, "--policy", "least-requests"}, []string{"least-requests"}},
		"drain":            {[]string{"drain", "r1", "--reason", "new driver"}, []string{"r1 is draining, 0 in flight"}},
		"drain again":      {[]string{"replicas", "drain", "r1", "--wait"}, []string{"r1 is drained"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := f.command(c.args...)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("%q is not in:\n%s", want, got)
				}
			}
			asJSON, err := f.command(append(c.args, "-o", "json")...)
			if err != nil || !json.Valid([]byte(asJSON)) {
				t.Errorf("-o json: %v\n%s", err, asJSON)
			}
		})
	}
	if got, err := f.command("replicas"); err != nil || !strings.Contains(got, "(new driver), 0 in flight") {
		t.Errorf("the list does not say why r1 drains: %v\n%s", err, got)
	}
	if _, err := f.command("drain", "r0"); err == nil || !strings.Contains(err.Error(), "last ready replica of model \"sim\"") || !strings.Contains(err.Error(), "--force") {
		t.Errorf("the last ready replica is drained: %v", err)
	}
	if got, err := f.command("undrain", "r1"); err != nil || !strings.Contains(got, "r1 is ready") {
		t.Errorf("undrain: %v %s", err, got)
	}
	nothing := filepath.Join(t.TempDir(), "nothing.json")
	if err := os.WriteFile(nothing, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"explain", "nobody"}, "has no decision for nobody"},
		{[]string{"choose"}, "--prompt TEXT or --body FILE"},
		{[]string{"choose", "--body", nothing}, "must be an OpenAI request in JSON"},
		{[]string{"choose", "--prompt", "x", "--policy", "wrong"}, "known are predicted-ttft"},
		{[]string{"choose", "--prompt", "x", "--model", "wrong"}, "The model `wrong` does not exist. The only model is `sim`."},
		{[]string{"choose", "--prompt", "x", "--body", body}, "prompt"},
		{[]string{"replicas", "drain", "nobody"}, "known are r0, r1; kvpilot replicas lists them"},
		{[]string{"top", "-o", "xml"}, "must be table or json"},
		{[]string{"replicas", "--tls"}, "does not use TLS"},
		{[]string{"replicas", "--ca", body}, "no certificate"},
	} {
		if _, err := f.command(c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.args, err, c.want)
		}
	}
	for line, want := range map[string]string{
		"replicas drain ": "r0\tready", "drain ": "r0\tready", "undrain ": "r1\tready", "choose --policy ": "predicted-ttft", "choose --model ": "sim", "explain ": a.header.Get("X-Kvpilot-Decision"), "top -o ": "json",
	} {
		if got, err := f.command(append([]string{"__complete"}, strings.Split(line, " ")...)...); err != nil || !strings.Contains(got, want) {
			t.Errorf("%q is completed with %q, %v; want %q", line, got, err, want)
		}
	}
}

func TestAKeyIsNeverPrinted(t *testing.T) {
	for _, name := range []string{"top", "explain", "choose", "replicas"} {
		var out bytes.Buffer
		if err := run(context.Background(), []string{name, "--help"}, []string{"KVPILOT_KEY=very-secret"}, &out, &out); err != nil {
			t.Fatal(err)
		}
		if text := out.String(); strings.Contains(text, "very-secret") || !strings.Contains(text, "KVPILOT_KEY") {
			t.Errorf("%s --help: %s", name, text)
		}
	}
}

func TestPlainGRPCAtAnAddressWithTLSIsExplained(t *testing.T) {
	r := &remote{address: "router:9090"}
	err := r.readable(status.Error(codes.Unavailable, `connection error: desc = "error reading server preface: http2: failed reading the frame payload: http2: frame too large, note that the frame header looked like an HTTP/1.1 header"`))
	if err == nil || !strings.Contains(err.Error(), "router:9090 does not serve gRPC without TLS: set --tls or --ca") {
		t.Error(err)
	}
}
