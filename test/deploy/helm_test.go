package deploy

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"sigs.k8s.io/yaml"
)

const chartDir = "../../deploy/helm/kvpilot"

// cluster answers the chart's look-ups. nil is none, as for helm template.
type cluster = engine.ClientProvider

// render returns the objects of the chart with the given values.
func render(t *testing.T, values string, in cluster) (string, error) {
	t.Helper()
	return renderAs(t, "prod", values, in)
}

// renderAs is render for a release of that name.
func renderAs(t *testing.T, name, values string, in cluster) (string, error) {
	t.Helper()
	return renderFor(t, chartutil.DefaultCapabilities.Copy(), name, values, in)
}

// renderOn is render for a cluster that has a further API.
func renderOn(t *testing.T, api, values string) (string, error) {
	t.Helper()
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.APIVersions = append(slices.Clone(capabilities.APIVersions), api)
	return renderFor(t, capabilities, "prod", values, nil)
}

func renderFor(t *testing.T, capabilities *chartutil.Capabilities, name, values string, in cluster) (string, error) {
	t.Helper()
	chart, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	given := valuesOf(t, values)
	release := chartutil.ReleaseOptions{Name: name, Namespace: "serving", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, given, release, capabilities)
	if err != nil {
		return "", err
	}
	var files map[string]string
	if in == nil {
		files, err = engine.Render(chart, all)
	} else {
		files, err = engine.RenderWithClientProvider(chart, all, in)
	}
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Ext(name) == ".yaml" {
			text.WriteString("---\n" + files[name] + "\n")
		}
	}
	return text.String(), nil
}

// valuesOf reads values, and adds the image that every installation must name.
func valuesOf(t *testing.T, text string) chartutil.Values {
	t.Helper()
	given, err := chartutil.ReadValues([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if given["image"] == nil {
		given["image"] = map[string]any{"repository": "registry.example.com/kvpilot"}
	}
	return given
}

func mustRender(t *testing.T, values string) *objects {
	t.Helper()
	text, err := render(t, values, nil)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, []byte(text))
}

// valueSets are charts as people install them.
var valueSets = map[string]string{
	"defaults":   ``,
	"one router": `{replicas: 1, fleet: {enabled: false}, podDisruptionBudget: {enabled: false}}`,
	"own key":    `{fleet: {key: {secret: the-fleet, key: gossip}}, config: {fleet: {patience: 100ms}}}`,
	// Any setting of listen made two keys "listen" in kvpilot.yaml.
	"settings of listen": `{config: {listen: {hosts: [kvpilot.example.com], max_streams: 1024}}}`,
	// Helm writes large numbers as 4.294967296e+09.
	"large numbers": `{config: {kvindex: {max_bytes: 4294967296}, gateway: {max_body_bytes: 41943040}}}`,
	"secrets": `
keys: {secret: the-keys}
tls: {secret: the-tls}
engines: {key: {secret: the-engine-key}, tls: {secret: the-engine-tls, clientCertificate: true, serverName: engine.internal}}
`,
	"policies": `
networkPolicy:
  enabled: true
  callers: [{namespaceSelector: {matchLabels: {kvpilot: caller}}}]
  engines: {podSelector: {matchLabels: {app.kubernetes.io/name: vllm}}, alsoFrom: [{podSelector: {matchLabels: {app: prometheus}}}]}
`,
	"scheduling": `
replicas: 5
podDisruptionBudget: {minAvailable: 60%}
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: In, values: [cpu]}]}]}}}
topologySpreadConstraints: [{maxSkew: 2, topologyKey: rack, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app.kubernetes.io/name: kvpilot}}}]
tolerations: [{key: dedicated, operator: Exists}]
nodeSelector: {pool: cpu}
podLabels: {team: serving}
imagePullSecrets: [{name: registry}]
service: {type: LoadBalancer, annotations: {lb: internal}}
watchNamespaces: [models]
env: [{name: KVPILOT_TELEMETRY_LOG_LEVEL, value: debug}]
volumes: [{name: extra, emptyDir: {}}]
volumeMounts: [{name: extra, mountPath: /extra}]
config: {chooser: {policy: predicted-ttft}, tenants: {default: {in_flight: 64}}}
`,
}

// allValueSets are those above and the examples that the chart ships.
func allValueSets(t *testing.T) map[string]string {
	t.Helper()
	sets := maps.Clone(valueSets)
	files, err := filepath.Glob(chartDir + "/ci/*-values.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d examples: %v", len(files), err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sets[filepath.Base(name)] = string(text)
	}
	return sets
}

func TestEveryValueSetMakesAWorkingRouter(t *testing.T) {
	for name, values := range allValueSets(t) {
		t.Run(name, func(t *testing.T) {
			o := mustRender(t, values)
			o.consistent(t)
			o.accepted(t)
		})
	}
}

func TestHelmFindsNoFault(t *testing.T) {
	for name, values := range allValueSets(t) {
		given := valuesOf(t, values)
		result := lint.All(chartDir, given, "serving", true)
		for _, message := range result.Messages {
			if message.Severity > support.InfoSev {
				t.Errorf("%s: %s", name, message)
			}
		}
	}
}

func TestWrongValuesAreRejectedWithTheirName(t *testing.T) {
	for _, test := range []struct{ values, want string }{
		{`{replica: 3}`, "replica"},
		{`{drain: {delay: 5}}`, "delay"},
		{`{config: {listen: {http: ":8000"}}}`, "config.listen.http is set by the chart"},
		{`{config: {listen: {drain_timeout: 10m}}}`, "use drain.timeoutSeconds"},
		{`{config: {chooser: {polcy: round-robin}}}`, "polcy"},
		{`{config: {upstream: {connect_timeout: 5}}}`, "connect_timeout"},
		{`{config: {fleet: {key: 0123456789abcdef}}}`, "use fleet.key.secret"},
		{`{replicas: three}`, "replicas"},
		{`{podDisruptionBudget: {maxUnavailable: one}}`, "maxUnavailable"},
		{`{image: {tag: v1}}`, "image.repository: set it"},
		{`{persistence: {enabled: true}}`, "persistence is for a single router"},
		{`{replicas: 1, persistence: {enabled: true}, config: {kvindex: {snapshot: /x}}}`, "config.kvindex.snapshot is set by the chart"},
		{`{persistence: {size: much}}`, "size"},
		{`{httpRoute: {enabled: true}}`, "parentRefs"},
		{`{ingress: {host: llm.example.com}}`, "host"},
		{`{serviceMonitor: {enabled: true}, adminService: {enabled: false}}`, "set adminService.enabled"},
		{`{serviceMonitor: {interval: often}}`, "interval"},
		{`{config: {registry: {kubernetes: [{service: vllm, pod_label: read}]}}}`, "pod_label"},
		{`{image: {repository: r, digest: latest}}`, "digest"},
		{`{nameOverride: My_Router}`, "nameOverride"},
		{`{keda: {enabled: true}}`, "triggers"},
		{`{autoscaling: {enabled: true, minReplicas: 9}}`, "autoscaling.minReplicas is above"},
		{`{autoscaling: {enabled: true, targetCPUUtilizationPercentage: null}}`, "autoscaling has no target"},
		{`{autoscaling: {enabled: true}, keda: {enabled: true, triggers: [{type: cpu}]}}`, "use one of them"},
		{`{replicas: 1, fleet: {enabled: false}, persistence: {enabled: true}, autoscaling: {enabled: true}}`, "persistence is for a single router"},
		{`{probes: {readiness: {period: 3}}}`, "period"},
		{`{service: {externalTrafficPolicy: local}}`, "externalTrafficPolicy"},
		{`{keys: {secret: k}, config: {admin: {keyed_health: true}}}`, "set probes.key.secret"},
		{`{keys: {secret: k}, config: {admin: {keyed_health: true}}, probes: {certificate: {secret: c}}}`, "set probes.key.secret"},
		{`{tls: {secret: c}, config: {listen: {admin_tls: true, client_ca: /x, admin_client_auth: required}}}`, "set probes.certificate.secret"},
		{`{tls: {secret: c}, config: {listen: {admin_tls: true}}, serviceMonitor: {enabled: true}}`, "set serviceMonitor.tlsConfig"},
		{`{env: [{name: KVPILOT_LISTEN_ADMIN, value: ":9000"}]}`, "KVPILOT_LISTEN_ADMIN is set by the chart"},
		{`{env: [{name: KVPILOT_ADMIN_KEYED_HEALTH, valueFrom: {secretKeyRef: {name: a, key: b}}}]}`, "must have a value"},
		{`{extraArgs: [--admin=:9000]}`, "--admin=:9000: the chart depends on it"},
		{`{extraArgs: [--set=listen.admin_tls=true]}`, "the chart depends on it"},
		{`{extraArgs: [serve]}`, "extraArgs"},
		{`{mode: picker}`, "mode"},
		{`{config: {epp: {listen: ":9002"}}}`, "config.epp.listen is set by the chart: remove it and use mode"},
		{`{mode: both, config: {epp: {health: ":9003"}}}`, "config.epp.health is set by the chart"},
		{`{mode: both, env: [{name: KVPILOT_EPP_LISTEN, value: ":9000"}]}`, "KVPILOT_EPP_LISTEN is set by the chart"},
		{`{mode: both, extraArgs: [--set=epp.listen=]}`, "the chart depends on it"},
		{`{mode: epp, httpRoute: {enabled: true, parentRefs: [{name: g}]}}`, "set mode to both"},
		{`{mode: epp, ingress: {enabled: true}}`, "set mode to both"},
		{`{inferencePool: {create: true}}`, "set mode to epp or both"},
		{`{mode: epp, inferencePool: {create: true, targetPorts: [1, 2, 3, 4, 5, 6, 7, 8, 9]}}`, "targetPorts"},
		{`{mode: epp, networkPolicy: {enabled: true, engines: {podSelector: {matchLabels: {app: vllm}}}}}`, "set networkPolicy.gateways"},
	} {
		if text, err := render(t, test.values, nil); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want an error with %q\n%s", test.values, err, test.want, text)
		}
	}
}

// The ports of callers and of gateways are there as the mode says, on the Service, the pods and in the policy.
func TestTheModeOpensPorts(t *testing.T) {
	for mode, want := range map[string][]string{
		"proxy": {"http", "grpc"}, "epp": {"grpc", "epp", "epp-health"}, "both": {"http", "grpc", "epp", "epp-health"},
	} {
		o := mustRender(t, "mode: "+mode+"\nnetworkPolicy: {enabled: true, gateways: [{namespaceSelector: {matchLabels: {team: edge}}}], engines: {podSelector: {matchLabels: {app: vllm}}}}\n")
		var service, pod, allowed []string
		for _, port := range o.services["prod-kvpilot"].Spec.Ports {
			service = append(service, port.Name)
		}
		for _, port := range o.deployment.Spec.Template.Spec.Containers[0].Ports {
			if slices.Contains([]string{"http", "grpc", "epp", "epp-health"}, port.Name) {
				pod = append(pod, port.Name)
			}
		}
		for _, rule := range o.policies["prod-kvpilot"].Spec.Ingress {
			for _, port := range rule.Ports {
				if slices.Contains(want, port.Port.StrVal) {
					allowed = append(allowed, port.Port.StrVal)
				}
				if closed := strings.HasPrefix(port.Port.StrVal, "epp"); closed != (len(rule.From) == 1 && rule.From[0].NamespaceSelector != nil && rule.From[0].NamespaceSelector.MatchLabels["team"] == "edge") {
					t.Errorf("%s: port %s is open to %v", mode, port.Port.StrVal, rule.From)
				}
			}
		}
		if !slices.Equal(service, want) || !slices.Equal(pod, want) || !slices.Equal(allowed, want) {
			t.Errorf("%s: the Service has %v, the pods %v, the policy allows %v; want %v", mode, service, pod, allowed, want)
		}
		engines := o.policies["prod-kvpilot-engines"].Spec.Ingress[0].From
		if reached := len(engines) == 2; reached != (mode != "proxy") {
			t.Errorf("%s: the engines are open to %v", mode, engines)
		}
	}
}

func TestTheChartsPoolLeadsToTheRouters(t *testing.T) {
	for _, name := range []string{"picker-values.yaml", "picker-and-proxy-values.yaml"} {
		onePool(t, mustRender(t, allValueSets(t)[name]))
	}
	pool := onePool(t, mustRender(t, allValueSets(t)["picker-values.yaml"]))
	if pool.Name != "qwen" || len(pool.Spec.TargetPorts) != 2 || len(pool.Spec.Selector.MatchLabels) != 2 {
		t.Errorf("the pool is %+v", pool.Spec)
	}
}

// The chart's pool is where its routers find their engines, once, unless the settings or the values say otherwise.
func TestRoutersTakeTheirEnginesFromTheChartsPool(t *testing.T) {
	type registry struct {
		Kubernetes []any `json:"kubernetes"`
		Pools      []struct {
			Name, Namespace string
			Template        struct {
				Events struct{ Endpoint string } `json:"events"`
			} `json:"template"`
		} `json:"inference_pools"`
	}
	for name, test := range map[string]struct {
		values   string
		services int
		pools    []string
		events   string
	}{
		"without a pool":      {"", 1, nil, ""},
		"the pool alone":      {"mode: epp\ninferencePool: {create: true}\n", 0, []string{"prod-kvpilot"}, "tcp://{host}:5557"},
		"its template":        {"mode: epp\ninferencePool: {create: true, name: qwen, template: {events: {endpoint: 'tcp://{host}:7000'}}}\n", 0, []string{"qwen"}, "tcp://{host}:7000"},
		"own services stay":   {"mode: both\ninferencePool: {create: true}\nconfig: {registry: {kubernetes: [{service: other}]}}\n", 1, []string{"prod-kvpilot"}, "tcp://{host}:5557"},
		"named already":       {allValueSets(t)["pools-values.yaml"], 0, []string{"qwen", "llama"}, "tcp://{host}:5600"},
		"of another":          {"mode: epp\ninferencePool: {create: true, name: qwen}\nconfig: {registry: {inference_pools: [{name: qwen, namespace: elsewhere}]}}\n", 0, []string{"qwen", "qwen"}, ""},
		"the values say no":   {"mode: epp\ninferencePool: {create: true, replicas: false}\n", 1, nil, ""},
		"an example's picker": {allValueSets(t)["picker-values.yaml"], 0, []string{"qwen"}, "tcp://{host}:5557"},
	} {
		t.Run(name, func(t *testing.T) {
			var config struct{ Registry registry }
			if err := yaml.Unmarshal([]byte(mustRender(t, test.values).settings(t)), &config); err != nil {
				t.Fatal(err)
			}
			var pools []string
			for _, p := range config.Registry.Pools {
				pools = append(pools, p.Name)
			}
			if !slices.Equal(pools, test.pools) || len(config.Registry.Kubernetes) != test.services {
				t.Fatalf("the pools are %q and there are %d services", pools, len(config.Registry.Kubernetes))
			}
			if len(pools) > 0 && config.Registry.Pools[0].Template.Events.Endpoint != test.events {
				t.Errorf("the events are at %q", config.Registry.Pools[0].Template.Events.Endpoint)
			}
		})
	}
}

func TestAnUpdateLosesNoRouter(t *testing.T) {
	o := mustRender(t, ``)
	spec := o.deployment.Spec
	update := spec.Strategy.RollingUpdate
	if update == nil || update.MaxUnavailable.IntValue() != 0 || update.MaxSurge.IntValue() != 1 || spec.MinReadySeconds < 5 {
		t.Errorf("pods are replaced by %+v, ready for %d s", update, spec.MinReadySeconds)
	}
	if grace := time.Duration(*spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second; grace <= 305*time.Second {
		t.Errorf("pods are killed after %s, drain_delay and drain_timeout are 305 s", grace)
	}
	if len(o.disruptions) != 1 || o.disruptions[0].Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("budgets: %+v", o.disruptions)
	}
	if spread := spec.Template.Spec.TopologySpreadConstraints; len(spread) != 1 || spread[0].WhenUnsatisfiable != corev1.ScheduleAnyway {
		t.Errorf("the spread is %+v", spread)
	}
	if terms := spec.Template.Spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(terms) != 1 || terms[0].PodAffinityTerm.TopologyKey != "kubernetes.io/hostname" {
		t.Errorf("the anti-affinity is %+v", terms)
	}
}

func TestTheOperatorGetsRulesAndAlerts(t *testing.T) {
	o := mustRender(t, allValueSets(t)["httproute-monitoring-values.yaml"])
	rules := 0
	for _, object := range o.all {
		if r, ok := object.(*monitoringv1.PrometheusRule); ok {
			for _, group := range r.Spec.Groups {
				rules += len(group.Rules)
			}
		}
	}
	if rules < 20 {
		t.Errorf("%d rules arrive", rules)
	}
}

func TestTheAlertsLeadToGrafana(t *testing.T) {
	for value, want := range map[string]string{"": "/d/kvpilot/", "https://grafana.example.com/": "https://grafana.example.com/d/kvpilot/"} {
		o := mustRender(t, fmt.Sprintf("prometheusRule: {enabled: true, grafana: %q}\n", value))
		links := 0
		for _, object := range o.all {
			r, ok := object.(*monitoringv1.PrometheusRule)
			if !ok {
				continue
			}
			for _, group := range r.Spec.Groups {
				for _, rule := range group.Rules {
					if link := rule.Annotations["dashboard_url"]; strings.HasPrefix(link, want) {
						links++
					} else if rule.Alert != "" {
						t.Errorf("grafana %q: the link of %s is %q, want %s…", value, rule.Alert, link, want)
					}
				}
			}
		}
		if links < 20 {
			t.Errorf("grafana %q: %d links", value, links)
		}
	}
}

func TestTheRoutersFormAFleet(t *testing.T) {
	o := mustRender(t, valueSets["policies"])
	peers := o.services["prod-kvpilot-peers"]
	if peers == nil || peers.Spec.ClusterIP != corev1.ClusterIPNone || !peers.Spec.PublishNotReadyAddresses {
		t.Fatalf("the peers' Service is %+v", peers)
	}
	if join := "prod-kvpilot-peers.serving.svc:7946"; !strings.Contains(o.settings(t), join) {
		t.Errorf("no router joins %s:\n%s", join, o.settings(t))
	}
	if o.deployment.Spec.Replicas == nil || *o.deployment.Spec.Replicas != 3 {
		t.Errorf("%v routers", o.deployment.Spec.Replicas)
	}
	closed := map[string]bool{"gossip": true, "gossip-udp": true, "peer": true}
	for _, rule := range o.policies["prod-kvpilot"].Spec.Ingress {
		for _, port := range rule.Ports {
			if !closed[port.Port.StrVal] {
				continue
			}
			delete(closed, port.Port.StrVal)
			if len(rule.From) != 1 || rule.From[0].PodSelector == nil || rule.From[0].PodSelector.MatchLabels["app.kubernetes.io/instance"] != "prod" {
				t.Errorf("port %s is open to %+v", port.Port.StrVal, rule.From)
			}
		}
	}
	if len(closed) > 0 {
		t.Errorf("the policy has no rule for %v: routers do not reach each other", closed)
	}
}

// secrets is a cluster that has Secrets and nothing else.
type secrets struct{ objects []runtime.Object }

func (s secrets) GetClientFor(string, string) (dynamic.NamespaceableResourceInterface, bool, error) {
	resource := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	kinds := map[schema.GroupVersionResource]string{resource: "SecretList"}
	return fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, s.objects...).Resource(resource), true, nil
}

func keyIn(t *testing.T, values string, in cluster) string {
	t.Helper()
	text, err := render(t, values, in)
	if err != nil {
		t.Fatal(err)
	}
	secret := read(t, []byte(text)).secrets["prod-kvpilot-fleet"]
	if secret == nil {
		return ""
	}
	return string(secret.Data["key"])
}

func TestTheFleetsKeyIsMadeOnceAndKept(t *testing.T) {
	first, second := keyIn(t, ``, secrets{}), keyIn(t, ``, secrets{})
	if len(first) < 32 || first == second {
		t.Errorf("two installations have the keys %q and %q", first, second)
	}
	// "a-key-of-this-fleet" in base64.
	old := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "prod-kvpilot-fleet", "namespace": "serving"},
		"data": map[string]any{"key": "YS1rZXktb2YtdGhpcy1mbGVldA=="},
	}}
	if kept := keyIn(t, ``, secrets{[]runtime.Object{old}}); kept != "a-key-of-this-fleet" {
		t.Errorf("an upgrade replaces the key by %q", kept)
	}
	if made := keyIn(t, valueSets["own key"], secrets{}); made != "" {
		t.Errorf("a key %q is made next to the operator's own", made)
	}
}
