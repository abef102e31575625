package config_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kvpilot.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestFlagsBeatEnvironmentBeatsFileBeatsDefaults(t *testing.T) {
	file := write(t, "telemetry:\n  service_name: from-file\n  log_level: warn\n  log_format: json\n")
	c, err := config.Load(config.Source{
		File: file,
		Env:  []string{"KVPILOT_TELEMETRY_LOG_LEVEL=debug", "KVPILOT_TELEMETRY_SERVICE_NAME=from-env", "HOME=/"},
		Set:  []string{"telemetry.service_name=from-flag", "telemetry.traces.slow=2s"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Telemetry; got.ServiceName != "from-flag" || got.LogLevel != "debug" || got.LogFormat != "json" || got.Traces.Slow != 2*time.Second || got.Traces.Protocol != "grpc" {
		t.Errorf("settings = %+v", got)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	cases := map[string]struct {
		source config.Source
		want   []string
	}{
		"unknown keys": {config.Source{File: write(t, "telemetry:\n  service_nam: x\n  traces: {ratoi: 1}\nlog_level: debug\nfoo: {max_bytes: 1}\nregistry:\n  replicas:\n  - url: http://a:1\n    rank: 2\n    Labels: {}\n\"listen.http\": x\nlisten: {telemetry: {}}\n")}, []string{
			"line 2: telemetry.service_nam: no such setting; did you mean telemetry.service_name?", "line 3: telemetry.traces.ratoi: no such setting; did you mean telemetry.traces.ratio?",
			"line 4: log_level: no such setting; did you mean telemetry.log_level?", "line 5: foo: no such setting\n",
			"line 9: registry.replicas[0].rank: no such setting; did you mean registry.replicas[0].ranks?", "line 10: registry.replicas[0].Labels: no such setting; did you mean registry.replicas[0].labels?",
			`line 11: "listen.http": paths are for --set; in the file, write http below listen`, "line 12: listen.telemetry: no such setting; did you mean telemetry?",
		}},
		"unknown variable": {config.Source{Env: []string{"KVPILOT_TELEMETRY_LOGLEVEL=x", "KVPILOT_LOG_LEVEL=x", "KVPILOT_FROBNICATE=1"}}, []string{
			"KVPILOT_TELEMETRY_LOGLEVEL: no such setting; did you mean KVPILOT_TELEMETRY_LOG_LEVEL?", "KVPILOT_LOG_LEVEL: no such setting; did you mean KVPILOT_TELEMETRY_LOG_LEVEL?", "KVPILOT_FROBNICATE: no such setting",
		}},
		"unknown flag": {config.Source{Set: []string{"telemetry.nope=1", "chooser.hold-above=1s", "listen.log_level=debug"}}, []string{
			"--set telemetry.nope: no such setting\n", "--set chooser.hold-above: no such setting; did you mean chooser.hold_above?", "--set listen.log_level: no such setting; did you mean telemetry.log_level?",
		}},
		"no single value": {config.Source{Env: []string{"KVPILOT_REGISTRY_REPLICAS=http://a:1"}, Set: []string{"registry.aliases=a", "telemetry=x"}}, []string{
			"KVPILOT_REGISTRY_REPLICAS: is a list of objects: only the settings file can set it", "--set registry.aliases: is a map: only the settings file can set it", "--set telemetry: is a section: set one of its settings instead",
		}},
		"flag without =":  {config.Source{Set: []string{"telemetry"}}, []string{"must have the form key=value"}},
		"bad duration":    {config.Source{Set: []string{"telemetry.traces.slow=5"}}, []string{"telemetry.traces.slow", "duration"}},
		"bad number":      {config.Source{Env: []string{"KVPILOT_TELEMETRY_TRACES_RATIO=much"}}, []string{"KVPILOT_TELEMETRY_TRACES_RATIO", "must be a number"}},
		"several at once": {config.Source{Set: []string{"telemetry.log_level=loud", "telemetry.traces.ratio=2"}}, []string{"telemetry.log_level", "telemetry.traces.ratio"}},
		"no unit":         {config.Source{File: write(t, "chooser:\n  hold_above: 500\nlisten:\n  drain_timeout: 30\n  drain_delay: 5x\n")}, []string{"line 2: chooser.hold_above: must be a duration such as 500ms", "line 4: listen.drain_timeout", "line 5: listen.drain_delay"}},
		"wrong types": {config.Source{File: write(t, "listen: {max_streams: many, admin_tls: 1, hosts: a, http: [1]}\nregistry:\n  probe: {up: 1.5}\n  replicas:\n  - ranks: two\n    api_key: {a: b}\nchooser: {weights: {congestion: x}}\nrouter: 3\n")},
			[]string{
				"line 1: listen.max_streams: must be an integer", "listen.admin_tls: must be true or false", "listen.hosts: must be a list", "listen.http: must be a string",
				"line 3: registry.probe.up: must be an integer", "line 5: registry.replicas[0].ranks: must be an integer", "line 6: registry.replicas[0].api_key: must be a string",
				"line 7: chooser.weights.congestion: must be a number", "line 8: router: must be a mapping",
			}},
		"no bytes": {
			config.Source{
				File: write(t, "kvindex:\n  max_bytes: much\ntokenizer:\n  cache_bytes: 1,5GB\n  held_bytes: 1.5\nlisten: {max_header_bytes: [1]}\n"),
			},
			[]string{
				"line 2: kvindex.max_bytes: must be a number of bytes, as an integer or with a unit such as 512MiB, 4Gi or 1GB", "line 4: tokenizer.cache_bytes: must be a number of bytes",
				"line 5: tokenizer.held_bytes: must be a number of bytes", "line 6: listen.max_header_bytes: must be a number of bytes",
			},
		},
		"no bytes in flag and variable": {
			config.Source{Set: []string{"kvindex.max_bytes=4 gigs"}, Env: []string{"KVPILOT_MEMORY_MAX_BYTES=99EB"}},
			[]string{`--set kvindex.max_bytes: must be a number of bytes, as an integer or with a unit such as 512MiB, 4Gi or 1GB, not "4 gigs"`, `KVPILOT_MEMORY_MAX_BYTES: must be a number of bytes`},
		},
		"too few bytes": {
			config.Source{Set: []string{"memory.max_bytes=64Mi", "listen.max_header_bytes=1Ki"}},
			[]string{"memory.max_bytes: must be 0 or at least 256MiB, not 64MiB", "listen.max_header_bytes: must be from 4KiB to 4294967295, not 1KiB"},
		},
		"no policy": {config.Source{Set: []string{"chooser.policy=wrong"}}, []string{"chooser.policy: must be one of predicted-ttft, overlap-load", `not "wrong"`}},
		"unix sockets": {
			config.Source{Set: []string{"listen.http=unix:/run/kvpilot.sock", "listen.grpc=/run/kvpilot.sock", "listen.admin=:99999"}, Replicas: []string{"unix:/run/vllm.sock", "unix:///run/vllm.sock", "/run/vllm.sock"}},
			[]string{
				`listen.http: must be host:port, not "unix:/run/kvpilot.sock": Unix sockets are not supported`, `listen.grpc: must be host:port, not "/run/kvpilot.sock": Unix sockets`, "listen.admin: must have a port from 0 to 65535",
				`url: "unix:/run/vllm.sock" is a Unix socket, and replicas are reached over TCP only: start vLLM with --host and --port`, `url: "unix:///run/vllm.sock" is a Unix socket`, `url: "/run/vllm.sock" is a Unix socket`,
			},
		},
		"one address twice": {config.Source{Set: []string{"listen.http=127.0.0.1:7000", "listen.admin=127.0.0.1:7000"}}, []string{"listen.admin: 127.0.0.1:7000 is the address of listen.http"}},
		"missing file":      {config.Source{File: "/nonexistent/kvpilot.yaml"}, []string{"/nonexistent/kvpilot.yaml"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := config.Load(c.source)
			if err == nil {
				t.Fatal("Load() took it")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not name %q", err, want)
				}
			}
		})
	}
}

func TestKubernetesServiceLinksAreNotSettings(t *testing.T) {
	_, err := config.Load(config.Source{Env: []string{
		"KVPILOT_PORT=tcp://10.0.0.1:8080", "KVPILOT_SERVICE_HOST=10.0.0.1", "KVPILOT_SERVICE_PORT=8080",
		"KVPILOT_SERVICE_PORT_HTTP=8080", "KVPILOT_PORT_8080_TCP=tcp://10.0.0.1:8080",
		"KVPILOT_PORT_8080_TCP_ADDR=10.0.0.1", "KVPILOT_PORT_8080_TCP_PROTO=tcp", "KVPILOT_PORT_8080_TCP_PORT=8080",
	}})
	if err != nil {
		t.Errorf("Load() = %v", err)
	}
}

// The manifests have Services kvpilot-admin and kvpilot-peers too.
func TestLinksToFurtherServicesOfKvpilotAreNotSettings(t *testing.T) {
	_, err := config.Load(config.Source{Env: []string{
		"KVPILOT_ADMIN_PORT=tcp://10.0.0.1:9091", "KVPILOT_ADMIN_SERVICE_HOST=10.0.0.1", "KVPILOT_ADMIN_SERVICE_PORT=9091",
		"KVPILOT_ADMIN_SERVICE_PORT_ADMIN=9091", "KVPILOT_ADMIN_PORT_9091_TCP=tcp://10.0.0.1:9091",
		"KVPILOT_ADMIN_PORT_9091_TCP_ADDR=10.0.0.1", "KVPILOT_ADMIN_PORT_9091_TCP_PROTO=tcp", "KVPILOT_ADMIN_PORT_9091_TCP_PORT=9091",
	}})
	if err != nil {
		t.Errorf("Load() = %v", err)
	}
	for _, wrong := range []string{"KVPILOT_LISTEN_PORT=8080", "KVPILOT_LISTEN_HOST=10.0.0.1"} {
		if _, err := config.Load(config.Source{Env: []string{wrong}}); err == nil {
			t.Errorf("%s was taken", wrong)
		}
	}
}

func TestDurationsMeanWhatTheySay(t *testing.T) {
	for text, want := range map[string]time.Duration{"30s": 30 * time.Second, "5m": 5 * time.Minute, "0": 0, "0s": 0} {
		c, err := config.Load(config.Source{Set: []string{"telemetry.traces.slow=" + text}})
		if err != nil || c.Telemetry.Traces.Slow != want {
			t.Errorf("%q = %v, %v; want %v", text, c.Telemetry.Traces.Slow, err, want)
		}
	}
	if _, err := config.Load(config.Source{Set: []string{"telemetry.traces.slow=-1s"}}); err == nil {
		t.Error("a negative duration was taken")
	}
}

func TestBytesMayHaveAUnit(t *testing.T) {
	file := write(t, "kvindex: {max_bytes: 4Gi}\ntokenizer:\n  cache_bytes: 512MiB\n  held_bytes: \"1GB\"\ngateway: {max_bodies_bytes: 167772160}\n")
	c, err := config.Load(config.Source{
		File: file, Env: []string{"KVPILOT_MEMORY_MAX_BYTES=8GiB", "KVPILOT_LISTEN_MAX_HEADER_BYTES=128Ki"}, Set: []string{"chooser.queue.max_bytes=1.5GiB", "decisions.file_max_bytes=1000"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string][2]quantity.Bytes{
		"the file's 4Gi": {c.KVIndex.MaxBytes, 4 << 30}, "the file's 512MiB": {c.Tokenizer.CacheBytes, 512 << 20}, "the file's quoted 1GB": {c.Tokenizer.HeldBytes, 1_000_000_000},
		"the file's integer": {c.Gateway.MaxBodiesBytes, 160 << 20}, "a variable": {c.Memory.MaxBytes, 8 << 30}, "a variable of a small one": {c.Listen.MaxHeaderBytes, 128 << 10},
		"a flag": {c.Chooser.Queue.MaxBytes, 3 << 29}, "a flag without a unit": {c.Decisions.FileMaxBytes, 1000},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %d bytes, want %d", name, int64(got[0]), int64(got[1]))
		}
	}
	again := config.Default()
	if err := config.Parse([]byte(printed(t, c)), &again); err != nil || again.KVIndex.MaxBytes != 4<<30 {
		t.Errorf("the printed settings: %v, %v", again.KVIndex.MaxBytes, err)
	}
}

func TestEverySettingOfBytesTakesAUnit(t *testing.T) {
	for _, path := range config.Paths() {
		if !strings.HasSuffix(path, "bytes") {
			continue
		}
		if _, err := config.Load(config.Source{Set: []string{"gateway.max_bodies_bytes=1GiB", path + "=1GiB"}}); err != nil {
			t.Error(err)
		}
	}
}

func TestPrintedSettingsLoadAgainAndHideSecrets(t *testing.T) {
	c, err := config.Load(config.Source{Set: []string{"telemetry.traces.token=hunter2"}})
	if err != nil {
		t.Fatal(err)
	}
	var printed bytes.Buffer
	if err := config.Print(&printed, c); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(printed.String(), "hunter2") {
		t.Errorf("the secret shows:\n%s", printed.String())
	}
	again := config.Default()
	if err := config.Parse(printed.Bytes(), &again); err != nil {
		t.Errorf("printed settings do not load: %v\n%s", err, printed.String())
	}
}
