package registry_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

func urls(r *registry.Registry) string {
	var list []string
	for _, rep := range r.Snapshot().Replicas {
		text := string(rep.ID) + "=" + strings.TrimPrefix(rep.URL, "http://")
		if rep.State == replica.StateDraining {
			text += " draining"
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

func TestKubernetesIsFollowed(t *testing.T) {
	k := newKube(t)
	k.put("vllm-1", "IPv4", true, endpointPod{name: "a", address: "10.0.0.1"}, endpointPod{name: "b", address: "10.0.0.2"})
	k.put("vllm-2", "IPv4", true, endpointPod{name: "c", address: "10.0.0.3"})
	k.put("vllm-3", "IPv6", true, endpointPod{name: "a", address: "fd00::1"}, endpointPod{name: "d", address: "fd00::4"})
	r := start(t, k.config(), registry.Params{})
	expect := func(what, want string) {
		t.Helper()
		eventually(t, what+": "+want, func() bool { return urls(r) == want })
	}
	expect("all pages, each pod once", "a=10.0.0.1:8000, b=10.0.0.2:8000, c=10.0.0.3:8000, d=[fd00::4]:8000")
	rep, _ := r.Snapshot().Replica("a")
	if rep.Labels["zone"] != "z1" || rep.Labels["node"] != "n1" || rep.Labels["pool"] != "a" || rep.Events[0].Endpoint != "tcp://10.0.0.1:5557" {
		t.Errorf("replica of a pod: %+v", rep)
	}
	if d := r.Snapshot().Details("a"); d.Source != "kubernetes:models/vllm" {
		t.Errorf("source %q", d.Source)
	}
	watching := func(n int) func() bool {
		return func() (ok bool) { k.with(func() { ok = len(k.watchers) == n }); return ok }
	}
	eventually(t, "a watch", watching(1))
	k.put("vllm-2", "IPv4", false, endpointPod{name: "c", address: "10.0.0.3", terminating: true}, endpointPod{name: "e", address: "10.0.0.5"})
	expect("a pod terminates, another comes", "a=10.0.0.1:8000, b=10.0.0.2:8000, c=10.0.0.3:8000 draining, d=[fd00::4]:8000, e=10.0.0.5:8000")
	k.drop(&k.kubeList, "vllm-3")
	k.put("vllm-2", "IPv4", false, endpointPod{name: "e", address: "10.0.0.6"})
	expect("a slice goes, a pod has a new address", "a=10.0.0.1:8000, b=10.0.0.2:8000, e=10.0.0.6:8000")

	// The server ends the watch, as it does every few minutes: the next one continues from the
	// bookmark, with the token of that time.
	k.with(func() {
		k.version = 70
		k.tell(&k.kubeList, "BOOKMARK", map[string]any{"kind": "EndpointSlice", "metadata": map[string]any{"resourceVersion": "70"}})
		k.token = "second"
	})
	write(t, filepath.Join(k.dir, "token"), "second")
	k.endWatches()
	eventually(t, "the next watch", watching(1))
	k.with(func() {
		if last := k.seen[len(k.seen)-1]; last != "70" || k.lists != 1 {
			t.Errorf("the next watch began at %s after %d lists, want at 70 after 1", last, k.lists)
		}
	})
	k.put("vllm-1", "IPv4", false, endpointPod{name: "a", address: "10.0.0.1"})
	expect("the next watch works", "a=10.0.0.1:8000, e=10.0.0.6:8000")

	// A forgotten version makes it list again, and what went unseen is seen.
	k.put("vllm-2", "IPv4", true, endpointPod{name: "f", address: "10.0.0.7"})
	k.with(func() {
		k.tell(&k.kubeList, "ERROR", map[string]any{"kind": "Status", "code": 410, "message": "too old resource version"})
	})
	expect("listed again", "a=10.0.0.1:8000, f=10.0.0.7:8000")
}

func TestKubernetesOutagesLeaveTheReplicas(t *testing.T) {
	k := newKube(t)
	k.put("vllm-1", "IPv4", true, endpointPod{name: "a", address: "10.0.0.1"})
	k.with(func() { k.refuse, k.pods.refuse = 503, 503 })
	r := start(t, k.config(), registry.Params{})
	<-time.After(100 * time.Millisecond)
	k.with(func() { k.refuse, k.pods.refuse = 0, 0 }) // the server was not there yet when we began
	eventually(t, "a", func() bool { return urls(r) == "a=10.0.0.1:8000" })
	k.put("vllm-1", "IPv4", true, endpointPod{name: "b", address: "10.0.0.2"})
	k.with(func() { k.refuse, k.pods.refuse = 500, 500 })
	k.endWatches()
	<-time.After(200 * time.Millisecond)
	if got := urls(r); got != "a=10.0.0.1:8000" {
		t.Errorf("during an outage: %s, want a", got)
	}
	k.with(func() { k.refuse, k.pods.refuse = 0, 0 })
	eventually(t, "b after the outage", func() bool { return urls(r) == "b=10.0.0.2:8000" })
}

func TestKubernetesConfigIsChecked(t *testing.T) {
	for want, conf := range map[string]registry.KubernetesConfig{
		"service": {}, "template": {Service: "s", Template: registry.Spec{ID: "x"}}, "api_server": {Service: "s", APIServer: "host"},
	} {
		c := registry.DefaultConfig()
		c.Kubernetes = []registry.KubernetesConfig{conf}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate: %v, want an error about %q", err, want)
		}
	}
	c := registry.DefaultConfig()
	c.Kubernetes = []registry.KubernetesConfig{{Service: "s", Credentials: t.TempDir()}}
	r := registry.New(c, registry.Params{})
	if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "namespace") {
		t.Errorf("Run outside a cluster: %v, want an error about the namespace", err)
	}
}
