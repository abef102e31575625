package config_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
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
		"unknown key":      {config.Source{File: write(t, "telemetry:\n  service_nam: x\n")}, []string{"service_nam"}},
		"unknown variable": {config.Source{Env: []string{"KVPILOT_TELEMETRY_LOGLEVEL=x"}}, []string{"KVPILOT_TELEMETRY_LOGLEVEL", "no such setting"}},
		"unknown flag":     {config.Source{Set: []string{"telemetry.nope=1"}}, []string{"telemetry.nope", "no such setting"}},
		"flag without =":   {config.Source{Set: []string{"telemetry"}}, []string{"must have the form key=value"}},
		"bad duration":     {config.Source{Set: []string{"telemetry.traces.slow=5"}}, []string{"telemetry.traces.slow", "duration"}},
		"bad number":       {config.Source{Env: []string{"KVPILOT_TELEMETRY_TRACES_RATIO=much"}}, []string{"KVPILOT_TELEMETRY_TRACES_RATIO", "must be a number"}},
		"several at once":  {config.Source{Set: []string{"telemetry.log_level=loud", "telemetry.traces.ratio=2"}}, []string{"telemetry.log_level", "telemetry.traces.ratio"}},
		"missing file":     {config.Source{File: "/nonexistent/kvpilot.yaml"}, []string{"/nonexistent/kvpilot.yaml"}},
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

func TestDurationsMeanWhatTheySay(t *testing.T) { // S-35
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
