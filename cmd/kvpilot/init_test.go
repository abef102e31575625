package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
)

// TestInitWritesWhatServeTakes goes through every combination of its flags.
func TestInitWritesWhatServeTakes(t *testing.T) {
	options := [][]string{
		{"--replica", "http://10.0.0.8:8000"}, {"--events", "tcp://{host}:5557"}, {"--replay", "tcp://{host}:5657"}, {"--public"}, {"--keys-file", "/etc/kvpilot/keys"},
		{"--tls-cert", "/c.pem", "--tls-key", "/k.pem"}, {"--router", "10.0.0.2:7946", "--router", "10.0.0.3:7946"}, {"--traces", "jaeger:4317"},
	}
	for set := range 1 << len(options) {
		args := []string{"init", "--replica", "http://10.0.0.7:8000", "--out", "-"}
		for i, o := range options {
			if set>>i&1 == 1 {
				args = append(args, o...)
			}
		}
		replayAlone := set>>2&1 == 1 && set>>1&1 == 0
		var text bytes.Buffer
		err := run(t.Context(), args, nil, &text, io.Discard)
		if replayAlone && err != nil {
			continue // a replay without events is refused, or taken: both are the settings' own rule
		}
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		c := config.Default()
		if err := config.Parse(text.Bytes(), &c); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, text.String())
		}
		if got, want := len(c.Registry.Replicas), 1+set&1; got != want || c.Registry.Replicas[0].URL != "http://10.0.0.7:8000" {
			t.Errorf("%v: replicas %v", args, c.Registry.Replicas)
		}
		if public := set>>3&1 == 1; (c.Listen.HTTP == ":8080") != public || (c.API.KeysFile != "") != (set>>4&1 == 1) || (c.Listen.TLSCert != "") != (set>>5&1 == 1) || (len(c.Fleet.Join) == 2) != (set>>6&1 == 1) || (c.Telemetry.Traces.Endpoint != "") != (set>>7&1 == 1) {
			t.Errorf("%v: it wrote\n%s", args, text.String())
		}
	}
}

func TestInitOverwritesNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kvpilot.yaml")
	args := []string{"init", "--replica", "http://10.0.0.7:8000", "--out", file}
	var out bytes.Buffer
	if err := run(t.Context(), args, nil, &out, io.Discard); err != nil || !strings.Contains(out.String(), "kvpilot serve --config "+file) {
		t.Fatalf("%v: %s", err, out.String())
	}
	if err := run(t.Context(), []string{"serve", "--config", file, "--check-config"}, nil, io.Discard, io.Discard); err != nil {
		t.Errorf("serve refuses it: %v", err)
	}
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	args[2] = "http://10.0.0.9:8000"
	if err := run(t.Context(), args, nil, io.Discard, io.Discard); err == nil {
		t.Error("a second init succeeded")
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file was changed: %v", err)
	}
}

func TestInitRefusesWhatServeWould(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kvpilot.yaml")
	for name, args := range map[string][]string{
		"no replica":            {},
		"no URL":                {"--replica", "10.0.0.7"},
		"a certificate alone":   {"--replica", "http://10.0.0.7:8000", "--tls-cert", "/c.pem"},
		"an address of no port": {"--replica", "http://10.0.0.7:8000", "--events", "5557"},
	} {
		if err := run(t.Context(), append([]string{"init", "--out", file}, args...), nil, io.Discard, io.Discard); err == nil {
			t.Errorf("%s: it succeeded", name)
		}
		if _, err := os.Stat(file); err == nil {
			t.Fatalf("%s: it left a file", name)
		}
	}
}

func TestInitAsks(t *testing.T) {
	var d draft
	answers := "http://10.0.0.7:8000  http://10.0.0.8:8000\ntcp://{host}:5557\n\ny\n/etc/kvpilot/keys\n\n\n\njaeger:4317\n"
	var out bytes.Buffer
	if err := ask(&d, initQuestions, strings.NewReader(answers), &out); err != nil {
		t.Fatal(err)
	}
	if len(d.Replicas) != 2 || d.Events != "tcp://{host}:5557" || d.Replay != "" || !d.Public || d.KeysFile != "/etc/kvpilot/keys" || d.Cert != "" || d.Traces != "jaeger:4317" {
		t.Errorf("the answers became %+v", d)
	}
	if n := strings.Count(out.String(), ": "); n < len(initQuestions) {
		t.Errorf("%d questions, want %d:\n%s", n, len(initQuestions), out.String())
	}
	if err := ask(new(draft), initQuestions, strings.NewReader("http://10.0.0.7:8000\n"), io.Discard); err == nil {
		t.Error("answers that end early were enough")
	}
}
