package registry_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// write replaces the file at once, as an operator should: a slow machine would show a half-written one.
func write(t *testing.T, name, text string) {
	t.Helper()
	fresh := name + ".new"
	if err := errors.Join(os.WriteFile(fresh, []byte(text), 0o600), os.Rename(fresh, name)); err != nil {
		t.Fatal(err)
	}
}

func TestFileIsFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "replicas.yaml")
	write(t, filepath.Join(dir, "key"), "sesame\n")
	write(t, name, `replicas: [{id: a, url: "http://127.0.0.1:1", api_key_file: `+filepath.Join(dir, "key")+`}]`)
	config := fast()
	config.File = name
	r := start(t, config, registry.Params{})
	has := func(ids ...replica.ID) func() bool {
		return func() bool {
			s := r.Snapshot()
			for _, id := range ids {
				if _, ok := s.Replica(id); !ok {
					return false
				}
			}
			return len(s.Replicas) == len(ids)
		}
	}
	eventually(t, "the file's replica", has("a"))
	if rep, _ := r.Snapshot().Replica("a"); rep.APIKey.Reveal() != "sesame" {
		t.Error("the key's file was not read")
	}
	if d := r.Snapshot().Details("a"); d.Source != "file" {
		t.Errorf("source %q, want file", d.Source)
	}
	for _, bad := range []string{"", " \n", "# none\n", "replicas:", "replicas: # soon", "replicas: {", "replicas: [{id: a, url: \"http://127", "{}", "replicas: [{url: x}]", "replica: []", `replicas: [{id: a, url: "http://h:1"}, {id: a, url: "http://h:2"}]`} {
		write(t, name, bad)
		<-time.After(150 * time.Millisecond) // longer than the file settles
		if !has("a")() {
			t.Errorf("the wrong file %q changed the replicas", bad)
		}
	}
	write(t, name, `replicas: [{id: a, url: "http://127.0.0.1:1"}, {id: b, url: "http://127.0.0.1:2"}]`)
	eventually(t, "both replicas", has("a", "b"))
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	<-time.After(150 * time.Millisecond)
	if !has("a", "b")() {
		t.Error("a missing file changed the replicas")
	}
	write(t, name, "replicas: []")
	eventually(t, "no replica", has())
}

// Kubernetes updates a mounted ConfigMap by swapping the link that its files go through.
func TestAConfigMapsLinksAreFollowed(t *testing.T) {
	dir := t.TempDir()
	version := func(n, text string) {
		if err := os.Mkdir(filepath.Join(dir, n), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, n, "replicas.yaml"), text)
		fresh := filepath.Join(dir, "..data_tmp")
		if err := errors.Join(os.Symlink(n, fresh), os.Rename(fresh, filepath.Join(dir, "..data"))); err != nil {
			t.Fatal(err)
		}
	}
	version("..v1", `replicas: [{id: a, url: "http://127.0.0.1:1"}]`)
	name := filepath.Join(dir, "replicas.yaml")
	if err := os.Symlink(filepath.Join("..data", "replicas.yaml"), name); err != nil {
		t.Fatal(err)
	}
	config := fast()
	config.File = name
	r := start(t, config, registry.Params{})
	eventually(t, "a", func() bool { _, ok := r.Snapshot().Replica("a"); return ok })
	version("..v2", `replicas: [{id: b, url: "http://127.0.0.1:1"}]`)
	eventually(t, "b instead of a", func() bool {
		_, a := r.Snapshot().Replica("a")
		_, b := r.Snapshot().Replica("b")
		return b && !a
	})
}

func TestAMissingFileAtStartIsAnError(t *testing.T) {
	config := fast()
	config.File = filepath.Join(t.TempDir(), "absent.yaml")
	r := registry.New(config, registry.Params{})
	if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "absent.yaml") {
		t.Errorf("Run: %v, want an error that names the file", err)
	}
}

// resolver answers from a list.
type resolver struct {
	mu    sync.Mutex
	addrs []netip.Addr
	srv   []*net.SRV
	err   error
}

func (f *resolver) set(err error, addrs ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.addrs = err, nil
	for _, a := range addrs {
		f.addrs = append(f.addrs, netip.MustParseAddr(a))
	}
}

func (f *resolver) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addrs, f.err
}

func (f *resolver) LookupSRV(context.Context, string, string, string) (string, []*net.SRV, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return "", f.srv, f.err
}

func TestDNSIsFollowed(t *testing.T) {
	dns := &resolver{}
	dns.set(nil, "10.0.0.2", "10.0.0.1", "fd00::1", "10.0.0.1")
	config := listed()
	config.DNS = []registry.DNSConfig{{
		Name: "vllm.default.svc", Port: 8000, Interval: 5 * time.Second,
		Template: registry.Spec{Events: registry.EventsSpec{Endpoint: "tcp://*:5557"}, Labels: map[string]string{"from": "dns"}},
	}}
	virtual(t, newFleet("10.0.0.1", "10.0.0.2", "fd00::1"), config, registry.Params{Resolver: dns}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		urls := func(want ...string) {
			t.Helper()
			got := map[string]bool{}
			for _, rep := range r.Snapshot().Replicas {
				got[rep.URL] = true
				if host := strings.Trim(strings.TrimSuffix(strings.TrimPrefix(rep.URL, "http://"), ":8000"), "[]"); strings.Contains(string(rep.ID), host) {
					t.Errorf("the id %s shows the address", rep.ID)
				}
			}
			for _, url := range want {
				if !got[url] {
					t.Errorf("no replica at %s: %v", url, got)
				}
			}
			if len(got) != len(want) {
				t.Errorf("replicas at %v, want %v", got, want)
			}
		}
		pass(time.Second)
		urls("http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://[fd00::1]:8000")
		for _, rep := range r.Snapshot().Replicas {
			if rep.State != replica.StateReady || rep.Labels["from"] != "dns" {
				t.Errorf("%+v", rep)
			}
			if rep.URL == "http://[fd00::1]:8000" && rep.Events[0].Endpoint != "tcp://[fd00::1]:5557" {
				t.Errorf("IPv6 events address: %s", rep.Events[0].Endpoint)
			}
		}
		dns.set(errors.New("server failure"))
		pass(time.Minute)
		if n := len(r.Snapshot().Replicas); n != 3 {
			t.Errorf("a failing server left %d replicas, want 3", n)
		}
		dns.set(nil, "10.0.0.2")
		pass(6 * time.Second)
		urls("http://10.0.0.2:8000")
		dns.set(&net.DNSError{Err: "no such host", IsNotFound: true})
		pass(6 * time.Second)
		urls("http://10.0.0.2:8000") // once may be a hiccup
		pass(20 * time.Second)
		urls()
	})
}

func TestDNSServiceRecords(t *testing.T) {
	dns := &resolver{srv: []*net.SRV{{Target: "a.", Port: 8001}, {Target: "b.", Port: 8002}}}
	config := listed()
	config.DNS = []registry.DNSConfig{{Name: "_http._tcp.vllm", SRV: true, TLS: true}}
	virtual(t, newFleet("a", "b"), config, registry.Params{Resolver: dns}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		pass(time.Second)
		got := map[string]bool{}
		for _, rep := range r.Snapshot().Replicas {
			got[rep.URL] = true
		}
		if len(got) != 2 || !got["https://a:8001"] || !got["https://b:8002"] {
			t.Errorf("replicas at %v", got)
		}
	})
}

func TestTheFirstSourceCounts(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "replicas.yaml")
	write(t, name, `replicas: [{id: a, url: "http://127.0.0.1:2"}]`)
	config := fast(registry.Spec{ID: "a", URL: "http://127.0.0.1:1"})
	config.File = name
	r := start(t, config, registry.Params{})
	write(t, name, `replicas: [{id: a, url: "http://127.0.0.1:2"}, {id: b, url: "http://127.0.0.1:2"}]`)
	eventually(t, "b", func() bool { _, ok := r.Snapshot().Replica("b"); return ok })
	if rep, _ := r.Snapshot().Replica("a"); rep.URL != "http://127.0.0.1:1" {
		t.Errorf("a is at %s, want the configured address", rep.URL)
	}
}

func TestConfigIsReadAndChecked(t *testing.T) {
	config := registry.DefaultConfig()
	text := `
replicas:
  - {id: a, url: "http://h:8000/", api_key: sesame, ranks: 2, events: {endpoint: "tcp://*:5557", replay: "tcp://*:5657"}}
aliases: {gpt: base}
events: {endpoint: "tcp://{host}:5557"}
probe: {interval: 1s}
`
	if err := yaml.UnmarshalWithOptions([]byte(text), &config, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	if err := config.Validate(); err != nil {
		t.Error(err)
	}
	if config.Replicas[0].APIKey.Reveal() != "sesame" || config.Probe.Interval != time.Second || config.Probe.Timeout == 0 {
		t.Errorf("read %+v", config)
	}

	bad := map[string]func(*registry.Config){
		"replicas[0]": func(c *registry.Config) { c.Replicas = []registry.Spec{{URL: "h:8000"}} },
		"duplicate id": func(c *registry.Config) {
			c.Replicas = []registry.Spec{{ID: "a", URL: "http://h:1"}, {ID: "a", URL: "http://h:2"}}
		},
		"ranks": func(c *registry.Config) { c.Replicas = []registry.Spec{{URL: "http://h:1", Ranks: 5000}} },
		"events.endpoint": func(c *registry.Config) {
			c.Replicas = []registry.Spec{{URL: "http://h:1", Events: registry.EventsSpec{Endpoint: "5557"}}}
		},
		"events.replay": func(c *registry.Config) {
			c.Replicas = []registry.Spec{{URL: "http://h:1", Events: registry.EventsSpec{Endpoint: "tcp://*:1", Replay: "udp://h:5"}}}
		},
		"above 65535": func(c *registry.Config) {
			c.Replicas = []registry.Spec{{URL: "http://h:1", Ranks: 2, Events: registry.EventsSpec{Endpoint: "tcp://*:65535"}}}
		},
		"id":     func(c *registry.Config) { c.Replicas = []registry.Spec{{ID: "a b", URL: "http://h:1"}} },
		"models": func(c *registry.Config) { c.Replicas = []registry.Spec{{URL: "http://h:1", Models: []string{""}}} },
		"dns[0]": func(c *registry.Config) { c.DNS = []registry.DNSConfig{{Name: "x"}} },
		"template": func(c *registry.Config) {
			c.DNS = []registry.DNSConfig{{Name: "x", Port: 1, Template: registry.Spec{ID: "a"}}}
		},
		"aliases":        func(c *registry.Config) { c.Aliases = map[string]string{"a": ""} },
		"probe.path":     func(c *registry.Config) { c.Probe.Path = "health" },
		"probe.interval": func(c *registry.Config) { c.Probe.Interval = -time.Second },
		"probe.up":       func(c *registry.Config) { c.Probe.Up = 0 },
		"registration":   func(c *registry.Config) { c.Registration.Lease = 0 },
	}
	for want, change := range bad {
		c := registry.DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate: %v, want an error about %q", err, want)
		}
	}
}
