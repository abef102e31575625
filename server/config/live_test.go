package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

func TestEveryPathOfTheTableIsASetting(t *testing.T) {
	text, err := config.Reference(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range config.LivePaths() {
		found := false
		for line := range strings.Lines(text) {
			rest, row := strings.CutPrefix(line, "- `"+path)
			if row && (rest[0] == '`' || rest[0] == '.' || rest[0] == '[') {
				found = true
				if !strings.HasSuffix(strings.TrimSpace(line), " *Reload.*") {
					t.Errorf("docs/config.md does not mark %s", line)
				}
			}
		}
		if !found {
			t.Errorf("%s is no setting", path)
		}
	}
}

func TestTheDifferenceIsNamedAndSecretsAreStarred(t *testing.T) {
	now, next := config.Default(), config.Default()
	now.API.Keys = []grpcapi.Key{{Name: "a", Key: secret.New("hunter2hunter2")}}
	next.API.Keys = []grpcapi.Key{{Name: "a", Key: secret.New("correcthorse")}, {Name: "b", Key: secret.New("batterystaple"), Admin: true}}
	next.Registry.Replicas = []registry.Spec{{ID: "r1", URL: "http://h:1", Labels: map[string]string{"zone": "x"}}}
	next.Chooser.Policy = "round-robin"
	next.KVIndex.MaxBytes = 1 << 30
	next.Listen.Hosts = []string{}
	var lines []string
	for _, c := range config.Diff(now, next) {
		lines = append(lines, c.String())
	}
	want := []string{
		"api.keys[a].key: ****** -> ******",
		"api.keys[b].admin: (none) -> true",
		"api.keys[b].key: (none) -> ******",
		"api.keys[b].name: (none) -> b",
		"chooser.policy: predicted-ttft -> round-robin",
		"kvindex.max_bytes: 2GiB -> 1GiB (needs a restart)",
		"registry.replicas[r1].id: (none) -> r1",
		"registry.replicas[r1].labels.zone: (none) -> x",
		"registry.replicas[r1].url: (none) -> http://h:1",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("differences\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	merged := config.Merge(now, next)
	if merged.Chooser.Policy != "round-robin" || len(merged.API.Keys) != 2 || len(merged.Registry.Replicas) != 1 || merged.KVIndex.MaxBytes != now.KVIndex.MaxBytes {
		t.Errorf("merged %+v", merged)
	}
	if left := config.Diff(merged, next); len(left) != 1 || !left[0].Restart {
		t.Errorf("after the merge %v differ", left)
	}
	if config.Hash(now) != config.Hash(config.Default()) && config.Hash(now) == config.Hash(next) {
		t.Error("different settings have one hash")
	}
	one, other := now, now
	other.API.Keys = []grpcapi.Key{{Name: "a", Key: secret.New("another key")}}
	if config.Hash(one) != config.Hash(other) {
		t.Error("the hash tells of a secret")
	}
	other.Fleet.Name, other.Fleet.Advertise = "kvpilot-1", "10.1.2.3"
	if config.Hash(one) != config.Hash(other) {
		t.Error("routers of a fleet with equal settings have different hashes")
	}
}

func TestTracesThatNobodyRecordsNeedARestart(t *testing.T) {
	now, next := config.Default(), config.Default()
	now.Telemetry.Traces.Ratio, next.Telemetry.Traces.Ratio = 0, 1
	if d := config.Diff(now, next); len(d) != 1 || !d[0].Restart {
		t.Errorf("from 0 to 1: %v", d)
	}
	if d := config.Diff(next, now); len(d) != 1 || d[0].Restart {
		t.Errorf("from 1 to 0: %v", d)
	}
	if config.Merge(now, next).Telemetry.Traces.Ratio != 0 {
		t.Error("merged all the same")
	}
}

func TestNamedFilesAreDigested(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("a:12345678"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.API.KeysFile = file
	c.Registry.Access.TLS.CAFile = file + "-missing"
	c.Registry.Replicas = []registry.Spec{{ID: "r", URL: "http://h:1", APIKeyFile: file}}
	files := config.NamedFiles(c)
	if len(files) != 3 || files["api.keys_file"] == "" || files["api.keys_file"] != files["registry.replicas[r].api_key_file"] || files["registry.access.tls.ca_file"] == files["api.keys_file"] {
		t.Errorf("files %q", files)
	}
}

func TestReadKeepsReplicasOfTheCommandLine(t *testing.T) {
	source := config.Source{File: write(t, "listen: {drain_delay: 3s}\n"), Replicas: []string{"http://h:1"}, Env: []string{"A=b", "KEY=x=y"}}
	for range 2 {
		loaded, err := config.Read(source)
		if err != nil || len(loaded.Config.Registry.Replicas) != 1 || loaded.Config.Listen.DrainDelay != 3*time.Second || len(loaded.Text) == 0 {
			t.Errorf("%+v, %v", loaded.Config.Registry.Replicas, err)
		}
	}
	if v, ok := source.Lookup("KEY"); !ok || v != "x=y" {
		t.Errorf("Lookup() = %q, %t", v, ok)
	}
}

func TestMistakesDoNotShowTheirSurroundings(t *testing.T) {
	_, err := config.Load(config.Source{File: write(t, "api:\n  keys:\n    - name: a\n      key: hunter2hunter2\n      kye: hunter3hunter3\n")})
	if err == nil || strings.Contains(err.Error(), "hunter") || !strings.Contains(err.Error(), "kye") || !strings.Contains(err.Error(), "5:") {
		t.Errorf("error %v, want one that names the line and the key, and no secret", err)
	}
}

func FuzzPartOfAFile(f *testing.F) {
	whole := "api:\n  keys:\n    - {name: a, key: hunter2hunter2}\nchooser:\n  policy: round-robin\n  models:\n    m: {policy: random}\nregistry:\n  replicas:\n    - {id: r, url: \"http://h:1\"}\n"
	for i := range whole {
		f.Add(i, "x")
	}
	f.Fuzz(func(t *testing.T, at int, more string) {
		if at < 0 || at > len(whole) || len(more) > 1000 {
			t.Skip()
		}
		c := config.Default()
		if err := config.Parse([]byte(whole[:at]+more), &c); err != nil {
			return
		}
		now := config.Default()
		for _, change := range config.Diff(now, c) {
			if strings.Contains(change.String(), "hunter2") {
				t.Errorf("a secret shows: %s", change)
			}
		}
		for _, left := range config.Diff(config.Merge(now, c), c) {
			if !left.Restart {
				t.Errorf("not merged: %s", left)
			}
		}
	})
}
