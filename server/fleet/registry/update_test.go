package registry_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
)

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// keyOf is the key that is sent to a replica.
func keyOf(r *registry.Registry, id replica.ID) string {
	rep, ok := r.Snapshot().Replica(id)
	if !ok {
		return "(none)"
	}
	return rep.APIKey.Reveal()
}

func TestAnUpdateChangesListAliasesAndKeysAndKeepsRanks(t *testing.T) {
	a, b := newFakeReplica(t), newFakeReplica(t)
	config := fast(registry.Spec{ID: "a", URL: a.URL})
	config.Access.APIKey = secret.New("first")
	r := start(t, config, registry.Params{})
	eventually(t, "ready", func() bool { return state(r, "a") == replica.StateReady })
	before, _ := r.Snapshot().Replica("a")

	next := fast(registry.Spec{ID: "a", URL: a.URL}, registry.Spec{ID: "b", URL: b.URL})
	next.Access.APIKey = secret.New("second")
	next.Aliases = map[string]string{"gpt": "base"}
	next.Probe.Concurrency = 1 // it needs a restart
	if err := r.Update(bounded(t), next); err != nil {
		t.Fatal(err)
	}
	after, _ := r.Snapshot().Replica("a")
	if keyOf(r, "a") != "second" || keyOf(r, "b") != "second" || after.State != replica.StateReady || after.Slots[0] != before.Slots[0] {
		t.Errorf("after the update: %+v", after)
	}
	if _, ok := r.Snapshot().Pool("gpt"); !ok {
		t.Error("the alias is not there")
	}
	eventually(t, "b is ready", func() bool { return state(r, "b") == replica.StateReady })
	if err := r.Update(bounded(t), fast(registry.Spec{ID: "b", URL: b.URL})); err != nil {
		t.Fatal(err)
	}
	if _, still := r.Snapshot().Replica("a"); still || keyOf(r, "b") != "" {
		t.Errorf("a is there: %t, b has the key %q", still, keyOf(r, "b"))
	}
}

func TestAWrongUpdateChangesNothing(t *testing.T) {
	a := newFakeReplica(t)
	config := fast(registry.Spec{ID: "a", URL: a.URL})
	config.Access.APIKey = secret.New("first")
	r := start(t, config, registry.Params{})
	eventually(t, "ready", func() bool { return state(r, "a") == replica.StateReady })
	for name, change := range map[string]func(*registry.Config){
		"a key file that is not there": func(c *registry.Config) { c.Access = registry.Access{APIKeyFile: "/nonexistent"} },
		"a replica's own":              func(c *registry.Config) { c.Replicas[0].APIKeyFile = "/nonexistent" },
		"an authority that is no file": func(c *registry.Config) { c.Access.TLS = tlspeer.Config{CAFile: "/nonexistent"} },
		"an id twice":                  func(c *registry.Config) { c.Replicas = append(c.Replicas, c.Replicas[0]) },
		"a template's key file": func(c *registry.Config) {
			c.DNS = []registry.DNSConfig{{Name: "x", Port: 1, Template: registry.Spec{APIKeyFile: "/nonexistent"}}}
		},
		"a pool's variable is not set":  func(c *registry.Config) { c.Pools = map[string]registry.Access{"p": {APIKeyEnv: "NOPE"}} },
		"a replica of an unknown group": func(c *registry.Config) { c.Replicas[0].Pool = "nope" },
	} {
		t.Run(name, func(t *testing.T) {
			next := fast(registry.Spec{ID: "a", URL: a.URL})
			change(&next)
			if err := r.Check(next); err == nil {
				t.Error("Check() finds nothing wrong")
			}
			if err := r.Update(bounded(t), next); err == nil || keyOf(r, "a") != "first" {
				t.Errorf("error %v, the key is %q", err, keyOf(r, "a"))
			}
		})
	}
}

// The key in a file is renewed for replicas of every source, without their ranks being lost.
func TestARenewedKeyFileReachesEverySource(t *testing.T) {
	a, b := newFakeReplica(t), newFakeReplica(t)
	dir := t.TempDir()
	key, list := filepath.Join(dir, "key"), filepath.Join(dir, "replicas.yaml")
	save := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	save(key, "one")
	save(list, "replicas: [{id: b, url: \""+b.URL+"\", api_key_file: \""+key+"\"}]\n")
	config := fast(registry.Spec{ID: "a", URL: a.URL})
	config.File = list
	config.Access.APIKeyFile = key
	r := start(t, config, registry.Params{})
	eventually(t, "both are ready", func() bool { return state(r, "a") == replica.StateReady && state(r, "b") == replica.StateReady })
	before, _ := r.Snapshot().Replica("b")
	save(key, "two\n")
	if err := r.Update(bounded(t), config); err != nil {
		t.Fatal(err)
	}
	after, _ := r.Snapshot().Replica("b")
	if keyOf(r, "a") != "two" || keyOf(r, "b") != "two" || after.Slots[0] != before.Slots[0] {
		t.Errorf("keys %q and %q, slots %v then %v", keyOf(r, "a"), keyOf(r, "b"), before.Slots, after.Slots)
	}
}

// environment is the value of all variables.
type environment string

func (e environment) Lookup(string) (string, bool) { return string(e), true }

// Whoever may register must not have the fleet's key sent to an address of their choice.
func TestARegisteredReplicaGetsNoKeyButItsOwn(t *testing.T) {
	a, b := newFakeReplica(t), newFakeReplica(t)
	config := fast()
	config.Access.APIKey = secret.New("the-fleet's")
	config.Pools = map[string]registry.Access{"p": {APIKey: secret.New("the-pool's")}}
	r := start(t, config, registry.Params{Env: environment("the-environment's")})
	for _, spec := range []registry.Spec{
		{ID: "a", URL: a.URL, Pool: "p", APIKeyEnv: "HOME", Models: []string{"p"}},
		{ID: "b", URL: b.URL, APIKey: secret.New("own")},
	} {
		if _, _, err := r.Register(bounded(t), spec, 0); err != nil {
			t.Fatal(err)
		}
	}
	if keyOf(r, "b") != "own" {
		t.Errorf("b is sent %q", keyOf(r, "b"))
	}
	if got := keyOf(r, "a"); strings.HasPrefix(got, "the-") {
		t.Errorf("a is sent %q", got)
	}
}

func TestAnUpdateOfARegistryThatEndedSaysSo(t *testing.T) {
	r := registry.New(fast(), registry.Params{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.Update(bounded(t), fast()); err == nil {
		t.Error("it was taken")
	}
}
