package registry_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// nowhere is a network without replicas.
type nowhere struct{}

func (nowhere) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("no network") }

func unplugged() *http.Client { return &http.Client{Transport: nowhere{}} }

// The account's token is for the API server alone.
func TestKubernetesRedirectsAreNotFollowed(t *testing.T) {
	var asked atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked.Add(1); r.Header.Get("Authorization") }))
	t.Cleanup(elsewhere.Close)
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		var requests atomic.Int64
		k := newKube(t)
		k.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			http.Redirect(w, r, elsewhere.URL+"/steal", status)
		})
		var log logged
		start(t, k.config(), registry.Params{Client: unplugged(), Scope: scope.Logged(slog.New(slog.NewTextHandler(&log, nil)))})
		eventually(t, "the failure is logged", func() bool {
			return requests.Load() > 0 && strings.Contains(log.String(), fmt.Sprintf("status %d", status))
		})
	}
	if asked.Load() > 0 {
		t.Errorf("%d requests went elsewhere", asked.Load())
	}
}

func TestKubernetesAddressesAreChecked(t *testing.T) {
	t.Parallel()
	k := newKube(t)
	var pods []endpointPod
	for i, address := range []string{
		"169.254.169.254", "not-an-ip", "0.0.0.0", "224.0.0.1", "255.255.255.255", "fe80::1", "::", "ff02::1", "::ffff:169.254.169.254", "2852039166", "0xa9.254.169.254", "", "metadata.google.internal", "10.0.0.1:80/x?",
	} {
		pods = append(pods, endpointPod{name: fmt.Sprint("bad-", i), address: address})
	}
	k.put("vllm-1", "IPv4", true, append(pods, endpointPod{name: "a", address: "10.0.0.1"})...)
	var log logged
	config := k.config()
	r := start(t, config, registry.Params{Client: unplugged(), Scope: scope.Logged(slog.New(slog.NewTextHandler(&log, nil)))})
	eventually(t, "the good one", func() bool { return urls(r) == "a=10.0.0.1:8000" })
	if got := urls(r); got != "a=10.0.0.1:8000" {
		t.Errorf("replicas: %s", got)
	}
	if want := fmt.Sprintf("bad_addresses=%d above_limit=0", len(pods)); !strings.Contains(log.String(), want) {
		t.Errorf("the log lacks %q: %s", want, log.String())
	}
	examined := r.ExamineSources(t.Context())
	if len(examined) != 1 || examined[0].Replicas != 1 || examined[0].Err == nil || !strings.Contains(examined[0].Err.Error(), fmt.Sprintf("%d endpoints have addresses", len(pods))) {
		t.Errorf("examined: %+v", examined)
	}
}

// A Service with more endpoints than allowed keeps those that it has, and costs what the allowed ones cost.
func TestKubernetesEndpointsAreBounded(t *testing.T) {
	k := newKube(t)
	for s := range 20 {
		var pods []endpointPod
		for i := range 1000 {
			pods = append(pods, endpointPod{name: fmt.Sprintf("p-%02d-%03d", s, i), address: fmt.Sprintf("10.%d.%d.%d", s, i/250, i%250+1)})
		}
		k.put(fmt.Sprintf("vllm-%02d", s), "IPv4", true, pods...)
	}
	before := runtime.NumGoroutine()
	var log logged
	config := k.config()
	config.Kubernetes[0].MaxEndpoints = 100
	config.Probe.Interval, config.Probe.MaxInterval = time.Hour, time.Hour
	r := start(t, config, registry.Params{Client: unplugged(), Scope: scope.Logged(slog.New(slog.NewTextHandler(&log, nil)))})
	eventually(t, "100 replicas", func() bool { return len(r.Snapshot().Replicas) == 100 })
	eventually(t, "the log of the limit", func() bool { return strings.Contains(log.String(), "above_limit=19900 limit=100") })
	if n := runtime.NumGoroutine() - before; n > 400 {
		t.Errorf("%d goroutines for 100 replicas", n)
	}
	first := urls(r)
	k.put("vllm-", "IPv4", false, endpointPod{name: "a-new-one", address: "10.99.0.1"}) // its slice is the first in order
	eventually(t, "the new slice", func() bool { return strings.Contains(log.String(), "above_limit=19901") })
	if now := urls(r); now != first {
		t.Errorf("a new endpoint replaced a replica: %s", now)
	}
}

func TestKubernetesAnswersAreBounded(t *testing.T) {
	for name, answer := range map[string]string{
		"many small items":      `{"metadata":{"resourceVersion":"1"},"items":[` + strings.Repeat("{},", 1<<20) + `{}]}`,
		"many small endpoints":  `{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"},"endpoints":[` + strings.Repeat("{},", 1<<20) + `{}]}]}`,
		"a page without an end": `{"metadata":{"name":"` + strings.Repeat("a", 17<<20),
		"null":                  `{"metadata":{"resourceVersion":"1"},"items":null}`,
	} {
		t.Run(name, func(t *testing.T) {
			k := newKube(t)
			var watches atomic.Int64
			k.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Get("watch") == "" {
					fmt.Fprint(w, answer)
					return
				}
				watches.Add(1)
				line := []byte(strings.Repeat("a", 1<<20))
				fmt.Fprint(w, `{"type":"ADDED","object":{"metadata":{"name":"`)
				for range 64 { // an event without an end
					if _, err := w.Write(line); err != nil {
						return
					}
				}
			})
			var log logged
			start(t, k.config(), registry.Params{Client: unplugged(), Scope: scope.Logged(slog.New(slog.NewTextHandler(&log, nil)))})
			eventually(t, "an answer that is too long", func() bool { return strings.Contains(log.String(), "too long") })
			if name == "many small items" && watches.Load() == 0 {
				t.Error("the list is not taken")
			}
			var mem runtime.MemStats
			runtime.ReadMemStats(&mem)
			if mem.HeapAlloc > 256<<20 {
				t.Errorf("the heap has %d MiB", mem.HeapAlloc>>20)
			}
		})
	}
}

func TestKubernetesLoopbackIsForAPIServersOfThisMachine(t *testing.T) {
	for address, want := range map[string][2]bool{ // from far and near API servers
		"10.0.0.1": {true, true}, "fd00::1": {true, true}, "127.0.0.1": {false, true}, "::1": {false, true}, "127.9.9.9": {false, true}, "::ffff:127.0.0.1": {false, true},
		"169.254.169.254": {}, "fe80::1%eth0": {}, "localhost": {}, "10.0.0": {}, "010.0.0.1": {}, "": {},
	} {
		for i, near := range []bool{false, true} {
			if got := registry.CheckEndpoint(address, near) == nil; got != want[i] {
				t.Errorf("%q, near %v: accepted %v", address, near, got)
			}
		}
	}
	for server, want := range map[string]bool{"https://127.0.0.1:6443": true, "http://localhost:8001": true, "https://[::1]:1": true, "https://kubernetes.default.svc": false, "https://10.96.0.1": false, "https://localhost.evil": false} {
		if registry.IsNear(server) != want {
			t.Errorf("%s", server)
		}
	}
}

func TestDNSAddressesAreChecked(t *testing.T) {
	dns := &resolver{}
	dns.set(nil, "169.254.169.254", "0.0.0.0", "::", "224.0.0.1", "fe80::1", "10.0.0.1", "127.0.0.1")
	config := listed()
	config.DNS = []registry.DNSConfig{{Name: "vllm", Port: 8000}}
	virtual(t, newFleet("10.0.0.1", "127.0.0.1"), config, registry.Params{Resolver: dns}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		pass(time.Second)
		if list := r.Snapshot().Replicas; len(list) != 2 {
			t.Errorf("replicas: %s", urls(r))
		}
	})
}
