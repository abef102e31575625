package members_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/peers/members"
)

func TestSettingsAreChecked(t *testing.T) {
	fleet := func(change func(*members.Config)) members.Config {
		c := members.DefaultConfig()
		c.Listen, c.Key = "10.0.0.1:7946", secret.New(fleetKey)
		change(&c)
		return c
	}
	for _, c := range []struct {
		name   string
		config members.Config
		want   string // of the error; empty: valid
	}{
		{"alone", members.DefaultConfig(), ""},
		{"in a fleet", fleet(func(c *members.Config) { c.Join, c.Advertise = []string{"routers:7946", "[::1]:1"}, "::1" }), ""},
		{"no key", fleet(func(c *members.Config) { c.Key = secret.String{} }), "key: must be set"},
		{"a short key", fleet(func(c *members.Config) { c.Key = secret.New("short") }), "key: must have at least 16 bytes, not 5"},
		{"two keys", fleet(func(c *members.Config) { c.KeyFile = "f" }), "key_file: key and key_file"},
		{"join without listen", members.Config{Join: []string{"a:1"}, Patience: 1e9, Grace: 1e9}, "join: has no effect unless fleet.listen is set"},
		{"no port", fleet(func(c *members.Config) { c.Listen = "a" }), `listen: must be host:port, not "a"`},
		{"a named port", fleet(func(c *members.Config) { c.Join = []string{"a:http"} }), `join: must list host:port, not "a:http"`},
		{"port 0", fleet(func(c *members.Config) { c.Listen = ":0" }), "rpc_listen: must be set"},
		{"advertised nowhere", fleet(func(c *members.Config) { c.Advertise = "0.0.0.0" }), "advertise: must be an address that others can reach"},
		{"advertised badly", fleet(func(c *members.Config) { c.Advertise = "a:b:c" }), "advertise: must be host or host:port"},
		{"no patience", fleet(func(c *members.Config) { c.Patience = 0 }), "patience: must be from 1ms to 1m0s, not 0s"},
		{"a long name", fleet(func(c *members.Config) { c.Name = strings.Repeat("n", 129) }), "name: must have at most 128 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.config.Validate()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	if at := fleet(func(*members.Config) {}).RPCAddress(); at != "10.0.0.1:7947" {
		t.Errorf("RPCAddress() = %q, want the next port", at)
	}
}

func TestTheKeyMayBeInAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	for text, want := range map[string]string{" " + fleetKey + "\n": "", "short\n": "fleet.key_file: " + file + " must have at least 16 bytes, not 5"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		key, err := members.Config{KeyFile: file}.Secret()
		if want == "" && (err != nil || string(key) != fleetKey) || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%q: key %q, error %v, want %q", text, key, err, want)
		}
	}
	if _, err := (members.Config{KeyFile: file + "-missing"}).Secret(); err == nil {
		t.Error("a missing file is no error")
	}
}
