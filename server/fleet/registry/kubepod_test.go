package registry_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// logged collects what is logged.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// labelled starts a registry that reads pods, before engines that list a base model, another one and two adapters.
func labelled(t *testing.T, k *kube, change func(*registry.KubernetesConfig)) (*registry.Registry, *logged) {
	t.Helper()
	var names []string
	for i := range 9 {
		names = append(names, fmt.Sprint("10.0.0.", i+1))
	}
	f := newFleet(names...)
	for _, name := range names {
		f.set(name, func(h *host) {
			h.models = `{"data":[{"id":"base"},{"id":"other"},{"id":"sql","parent":"base"},{"id":"chat","parent":"base"}]}`
		})
	}
	config := k.config()
	config.Kubernetes[0].PodLabels = ""
	if change != nil {
		change(&config.Kubernetes[0])
	}
	log := &logged{}
	return start(t, config, registry.Params{
		Client: &http.Client{Transport: f}, Scope: scope.Logged(slog.New(slog.NewTextHandler(log, nil))),
		Observer: snapshots{log: log},
	}), log
}

// snapshots logs the replicas of each snapshot.
type snapshots struct {
	registry.Unobserved
	log io.Writer
}

func (o snapshots) FleetChanged(s *registry.Snapshot) {
	for _, r := range s.Replicas {
		fmt.Fprintf(o.log, "shown %s at %s\n", r.ID, r.URL)
	}
}

// served waits until a replica is ready and returns it with its model names.
func served(t *testing.T, r *registry.Registry, id replica.ID) (*replica.Replica, string) {
	t.Helper()
	var rep *replica.Replica
	eventually(t, string(id)+" is ready", func() bool {
		var ok bool
		rep, ok = r.Snapshot().Replica(id)
		return ok && rep.State == replica.StateReady
	})
	var names []string
	for _, m := range rep.Models {
		names = append(names, m.ID)
	}
	return rep, strings.Join(names, " ")
}

func TestPodsSayWhatTheirEngineIs(t *testing.T) {
	for _, test := range []struct {
		name   string
		pod    said
		change func(*registry.KubernetesConfig)

		url, metrics, events, models, engine, role string
	}{
		{
			name: "nothing is said", url: "http://10.0.0.1:8000", metrics: "http://10.0.0.1:8000",
			events: "tcp://10.0.0.1:5557", models: "base other sql chat",
		},
		{
			name: "kvpilot's names",
			pod: said{
				labels: map[string]string{
					"kvpilot.model": "base", "kvpilot.engine": "vllm", "kvpilot.role": "decode", "kvpilot.port": "8001",
					"kvpilot.metrics-port": "9400", "kvpilot.events-port": "6000", "kvpilot.replay-port": "6100", "kvpilot.ranks": "2",
				},
				annotations: map[string]string{"kvpilot.adapters": "sql, unknown"},
			},
			url: "http://10.0.0.1:8001", metrics: "http://10.0.0.1:9400", engine: "vllm", role: "decode", models: "base sql",
			events: "tcp://10.0.0.1:6000 replay tcp://10.0.0.1:6100, tcp://10.0.0.1:6001 replay tcp://10.0.0.1:6101",
		},
		{
			name: "AIBrix's names",
			pod: said{labels: map[string]string{
				"model.aibrix.ai/name": "other", "model.aibrix.ai/engine": "vLLM", "model.aibrix.ai/port": "8002", "model.aibrix.ai/metric-port": "9000",
				"model.aibrix.ai/kv-events-enabled": "false", "adapter.model.aibrix.ai/enabled": "false", "role-name": "prefill",
			}},
			url: "http://10.0.0.1:8002", metrics: "http://10.0.0.1:9000", engine: "vllm", role: "prefill", models: "other",
		},
		{
			name: "AIBrix's older names, after the newer ones",
			pod: said{labels: map[string]string{
				"aibrix.ai/model": "other", "aibrix.ai/engine": "sglang", "aibrix.ai/port": "8002", "aibrix.ai/metric-port": "9000", "model.aibrix.ai/port": "8003",
			}},
			url: "http://10.0.0.1:8003", metrics: "http://10.0.0.1:9000", engine: "sglang", models: "other sql chat",
		},
		{
			name: "llm-d's names",
			pod:  said{labels: map[string]string{"llm-d.ai/model": "base", "llm-d.ai/engine-type": "sglang", "llm-d.ai/role": "prefill-decode"}},
			url:  "http://10.0.0.1:8000", metrics: "http://10.0.0.1:8000", engine: "sglang", role: "prefill-decode", models: "base sql chat",
		},
		{
			name: "labels before annotations, those before variables, kvpilot's names first",
			pod: said{
				labels:      map[string]string{"llm-d.ai/model": "base", "model.aibrix.ai/port": "8002"},
				annotations: map[string]string{"kvpilot.model": "other", "kvpilot.port": "8003", "kvpilot.engine": "vllm"},
				env:         map[string]string{"MODEL_NAME": "other", "INFERENCE_ENGINE": "sglang"},
			},
			url: "http://10.0.0.1:8002", metrics: "http://10.0.0.1:8002", engine: "vllm", models: "base sql chat", events: "tcp://10.0.0.1:5557",
		},
		{
			name: "variables, and the engine by the model",
			pod:  said{env: map[string]string{"MODEL": "other"}},
			change: func(c *registry.KubernetesConfig) {
				c.Engines = map[string]string{"other": "SGLang"}
				c.Template.MetricsPort = 9100
			},
			url: "http://10.0.0.1:8000", metrics: "http://10.0.0.1:9100", engine: "sglang", models: "other sql chat",
		},
		{
			name: "a model that the engine does not list",
			pod:  said{labels: map[string]string{"kvpilot.model": "typo"}},
			url:  "http://10.0.0.1:8000", metrics: "http://10.0.0.1:8000", events: "tcp://10.0.0.1:5557", models: "base other sql chat",
		},
		{
			name: "such a model before the setting's",
			pod:  said{labels: map[string]string{"kvpilot.model": "typo"}},
			change: func(c *registry.KubernetesConfig) {
				c.Template.Models = []string{"base"}
			},
			url: "http://10.0.0.1:8000", metrics: "http://10.0.0.1:8000", events: "tcp://10.0.0.1:5557", models: "base",
		},
		{
			name:   "labels are to be ignored",
			pod:    said{labels: map[string]string{"kvpilot.port": "8001"}},
			change: func(c *registry.KubernetesConfig) { c.PodLabels = "ignore" },
			url:    "http://10.0.0.1:8000", metrics: "http://10.0.0.1:8000", events: "tcp://10.0.0.1:5557", models: "base other sql chat",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := newKube(t)
			k.putPod("a", test.pod)
			k.put("vllm-1", "IPv4", true, endpointPod{name: "a", address: "10.0.0.1"})
			r, _ := labelled(t, k, test.change)
			rep, models := served(t, r, "a")
			var events []string
			for _, e := range rep.Events {
				text := e.Endpoint
				if e.Replay != "" {
					text += " replay " + e.Replay
				}
				events = append(events, text)
			}
			if got := strings.Join(events, ", "); rep.URL != test.url || rep.Metrics() != test.metrics || got != test.events || models != test.models {
				t.Errorf("url %s, metrics %s, events %q, models %q; want %s, %s, %q, %q", rep.URL, rep.Metrics(), got, models, test.url, test.metrics, test.events, test.models)
			}
			if rep.Labels["engine"] != test.engine || rep.Labels["role"] != test.role || rep.Labels["zone"] != "z1" || rep.Labels["node"] != "n1" || rep.Labels["pool"] != "a" {
				t.Errorf("labels %v, want engine %q and role %q", rep.Labels, test.engine, test.role)
			}
		})
	}
}

func TestPodNamesItsConnector(t *testing.T) {
	k := newKube(t)
	k.putPod("a", said{labels: map[string]string{
		"kvpilot.kv-connector": "NIXL", "llm-d.ai/role": "prefill", "kvpilot.kv-group": "tp4", "kvpilot.kv-domain": "rack-3", "kvpilot.kv-store": "lmcache-1",
		"kvpilot.kv-instance": "node-7",
	}})
	k.put("vllm-1", "IPv4", true, endpointPod{name: "a", address: "10.0.0.1"})
	r, _ := labelled(t, k, nil)
	rep, _ := served(t, r, "a")
	c := rep.Connector()
	if c.Transport != replica.NIXL || c.Role != replica.PrefillOnly || c.Domain != "rack-3" || !strings.HasSuffix(c.Group, "/tp4") || rep.Labels[replica.LabelStore] != "lmcache-1" || rep.Labels[replica.LabelInstance] != "node-7" {
		t.Errorf("%+v of labels %v", c, rep.Labels)
	}
}

func TestAPodNamesThePortOfItsBootstrapServer(t *testing.T) {
	for name, tt := range map[string]struct {
		labels, annotations map[string]string
		template            string // the label kv_bootstrap of the settings
		want                string
	}{
		"nothing":                     {want: "http://10.0.0.1:8998"},
		"an annotation":               {annotations: map[string]string{"kvpilot.kv-bootstrap": "9100"}, want: "http://10.0.0.1:9100"},
		"a label":                     {labels: map[string]string{"kvpilot.kv-bootstrap": "9101"}, want: "http://10.0.0.1:9101"},
		"a label before one":          {labels: map[string]string{"kvpilot.kv-bootstrap": "9101"}, annotations: map[string]string{"kvpilot.kv-bootstrap": "9100"}, want: "http://10.0.0.1:9101"},
		"before the settings":         {annotations: map[string]string{"kvpilot.kv-bootstrap": "9100"}, template: "9200", want: "http://10.0.0.1:9100"},
		"the settings alone":          {template: "9200", want: "http://10.0.0.1:9200"},
		"leading zeros":               {annotations: map[string]string{"kvpilot.kv-bootstrap": "009100"}, want: "http://10.0.0.1:9100"},
		"another host":                {annotations: map[string]string{"kvpilot.kv-bootstrap": "10.0.0.9:9100"}, want: "http://10.0.0.1:8998"},
		"a URL":                       {annotations: map[string]string{"kvpilot.kv-bootstrap": "http://10.0.0.9:9100"}, template: "9200", want: "http://10.0.0.1:9200"},
		"no number":                   {annotations: map[string]string{"kvpilot.kv-bootstrap": "bootstrap"}, want: "http://10.0.0.1:8998"},
		"a number that is no port":    {annotations: map[string]string{"kvpilot.kv-bootstrap": "65536"}, want: "http://10.0.0.1:8998"},
		"a label that cannot be used": {labels: map[string]string{"kvpilot.kv-bootstrap": "0"}, annotations: map[string]string{"kvpilot.kv-bootstrap": "9100"}, want: "http://10.0.0.1:9100"},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKube(t)
			k.putPod("a", said{labels: tt.labels, annotations: tt.annotations})
			k.put("vllm-1", "IPv4", true, endpointPod{name: "a", address: "10.0.0.1"})
			r, _ := labelled(t, k, func(c *registry.KubernetesConfig) {
				if tt.template != "" {
					c.Template.Labels = map[string]string{replica.LabelBootstrap: tt.template}
				}
			})
			if rep, _ := served(t, r, "a"); rep.Bootstrap() != tt.want {
				t.Errorf("%q of the labels %v, want %q", rep.Bootstrap(), rep.Labels, tt.want)
			}
		})
	}
}

func TestAChangedBootstrapPortCounts(t *testing.T) {
	k := newKube(t)
	k.putPod("a", said{annotations: map[string]string{"kvpilot.kv-bootstrap": "9100"}})
	k.put("vllm-1", "IPv4", true, endpointPod{name: "a", address: "10.0.0.1"})
	r, log := labelled(t, k, nil)
	expect := func(what, want string) {
		t.Helper()
		eventually(t, what, func() bool {
			list := r.Snapshot().Replicas
			return len(list) == 1 && list[0].Bootstrap() == want
		})
	}
	expect("the first port", "http://10.0.0.1:9100")
	eventually(t, "a watch of the pods", func() (ok bool) {
		k.with(func() { ok = len(k.pods.watchers) == 1 })
		return ok
	})
	k.putPod("a", said{annotations: map[string]string{"kvpilot.kv-bootstrap": "9200"}})
	expect("the second port", "http://10.0.0.1:9200")
	k.putPod("a", said{annotations: map[string]string{"kvpilot.kv-bootstrap": "evil.example:80"}})
	expect("the port without the annotation", "http://10.0.0.1:8998")
	if !strings.Contains(log.String(), "name=kvpilot.kv-bootstrap") {
		t.Errorf("nothing is logged of the wrong value:\n%s", log)
	}
	k.putPod("a", said{annotations: map[string]string{"kvpilot.kv-bootstrap": "9300"}})
	expect("the third port", "http://10.0.0.1:9300")
}

func TestWhatAPodSaysMayBeWrong(t *testing.T) {
	k := newKube(t)
	hostile := map[string]string{
		"kvpilot.port": "70000", "model.aibrix.ai/port": "-1", "kvpilot.metrics-port": "http", "kvpilot.events-port": "0", "kvpilot.replay-port": "5557; drop",
		"kvpilot.ranks": "99999999999999999999", "kvpilot.model": strings.Repeat("m", 300), "kvpilot.engine": "v\x00llm", "kvpilot.role": "a b\nc", "kvpilot.events": "perhaps",
		"kvpilot.kv-connector": "rdma", "kvpilot.kv-group": "a b",
	}
	k.putPod("a", said{annotations: hostile, labels: map[string]string{"kvpilot.adapters": strings.Repeat("x,", 2000)}})
	k.put("vllm-1", "IPv4", true, endpointPod{name: "a", address: "10.0.0.1"})
	r, log := labelled(t, k, nil)
	rep, models := served(t, r, "a")
	if rep.URL != "http://10.0.0.1:8000" || rep.Metrics() != rep.URL || len(rep.Slots) != 1 || models != "base other sql chat" ||
		len(rep.Events) != 1 || rep.Events[0].Endpoint != "tcp://10.0.0.1:5557" || rep.Labels["engine"] != "" || rep.Labels["role"] != "" {
		t.Errorf("the settings do not count: %+v with models %s", rep, models)
	}
	lines := func() int { return strings.Count(log.String(), "cannot be used") }
	if lines() != len(hostile)+1 {
		t.Errorf("%d lines for %d wrong values\n%s", lines(), len(hostile)+1, log)
	}
	for _, want := range []string{`name=kvpilot.port value=70000 error="must be a number from 1 to 65535"`, "pod=a", "source=kubernetes:models/vllm"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("nothing is logged of %s:\n%s", want, log)
		}
	}
	if strings.Contains(log.String(), strings.Repeat("m", 65)) {
		t.Error("a long value is logged whole")
	}

	// The same faults in another version of the pod are not logged again; a value that is right counts.
	hostile["kvpilot.port"] = "8005"
	k.putPod("a", said{annotations: hostile, labels: map[string]string{"kvpilot.adapters": strings.Repeat("x,", 2000)}})
	eventually(t, "the new port", func() bool { return urls(r) == "a=10.0.0.1:8005" })
	if lines() != len(hostile)+1 {
		t.Errorf("%d lines after another version of the pod\n%s", lines(), log)
	}
}

func TestPodsComeGoAndChange(t *testing.T) {
	k := newKube(t)
	k.putPod("a", said{labels: map[string]string{"kvpilot.port": "8001"}})
	k.putPod("else", said{labels: map[string]string{"kvpilot.port": "1"}})
	k.put("vllm-1", "IPv4", true, endpointPod{name: "a", address: "10.0.0.1"})
	r, log := labelled(t, k, nil)
	expect := func(what, want string) {
		t.Helper()
		eventually(t, what+": "+want, func() bool { return urls(r) == want })
	}
	expect("a port by its label", "a=10.0.0.1:8001")
	eventually(t, "two watches", func() (ok bool) {
		k.with(func() { ok = len(k.watchers) == 1 && len(k.pods.watchers) == 1 })
		return ok
	})
	k.putPod("a", said{labels: map[string]string{"kvpilot.port": "8002"}})
	expect("a changed label", "a=10.0.0.1:8002")

	// The endpoint arrives before its pod: it is not a replica at the Service's port in between.
	k.put("vllm-1", "IPv4", false, endpointPod{name: "a", address: "10.0.0.1"}, endpointPod{name: "b", address: "10.0.0.2"})
	k.putPod("b", said{annotations: map[string]string{"kvpilot.port": "8003"}})
	expect("another pod", "a=10.0.0.1:8002, b=10.0.0.2:8003")
	if strings.Contains(log.String(), "shown b at http://10.0.0.2:8000") {
		t.Error("a pod was a replica at the Service's port before its labels were known")
	}
	k.putPod("b", said{annotations: map[string]string{"kvpilot.port": "8003"}, deleted: true})
	expect("a pod is being deleted", "a=10.0.0.1:8002, b=10.0.0.2:8003 draining")
	k.put("vllm-1", "IPv4", false, endpointPod{name: "a", address: "10.0.0.1"})
	k.drop(&k.pods, "b")
	expect("it is gone", "a=10.0.0.1:8002")

	// The server ends both watches, then forgets the version of the pods.
	k.endWatches()
	k.putPod("a", said{labels: map[string]string{"kvpilot.port": "8004"}})
	expect("changed between two watches", "a=10.0.0.1:8004")
	eventually(t, "a watch of pods", func() (ok bool) { k.with(func() { ok = len(k.pods.watchers) == 1 }); return ok })
	k.with(func() {
		k.tell(&k.pods, "ERROR", map[string]any{"kind": "Status", "code": 410, "message": "too old resource version"})
		k.pods.objects["a"]["metadata"].(map[string]any)["labels"] = map[string]string{"kvpilot.port": "8005"}
		k.pods.objects["a"]["metadata"].(map[string]any)["resourceVersion"] = "999"
	})
	expect("listed again", "a=10.0.0.1:8005")
}

func TestAnEndpointDoesNotWaitForItsPodForEver(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for five seconds")
	}
	t.Parallel()
	k := newKube(t)
	k.put("vllm-1", "IPv4", true, endpointPod{name: "a", address: "10.0.0.1"})
	r, _ := labelled(t, k, nil)
	eventually(t, "a replica without its pod", func() bool { return urls(r) == "a=10.0.0.1:8000" })
}

func TestWithoutTheRightToReadPodsTheServiceCounts(t *testing.T) {
	for _, status := range []int{http.StatusForbidden, http.StatusInternalServerError} {
		k := newKube(t)
		k.putPod("a", said{labels: map[string]string{"kvpilot.port": "8001"}})
		k.put("vllm-1", "IPv4", true, endpointPod{name: "a", address: "10.0.0.1"})
		k.with(func() { k.pods.refuse = status })
		r, log := labelled(t, k, nil)
		eventually(t, "a replica at the Service's port", func() bool { return urls(r) == "a=10.0.0.1:8000" })
		if told := strings.Contains(log.String(), "grant list and watch on pods"); told != (status == http.StatusForbidden) {
			t.Errorf("status %d, logged:\n%s", status, log)
		}
	}
}
