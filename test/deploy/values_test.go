package deploy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// One invalid name keeps a whole release from being installed: Services and values of labels have at most 63 characters.
func TestNamesFitWhateverTheReleaseIsCalled(t *testing.T) {
	longest := strings.Repeat("a", 52) + "b"
	for _, test := range []struct{ release, values, want string }{
		{longest, ``, longest + "-kvpilot"},
		{"kvpilot", ``, "kvpilot"},
		{"prod", `nameOverride: router`, "prod-router"},
		{"prod", `fullnameOverride: llm`, "llm"},
		{longest, `nameOverride: ` + longest, longest},
		{longest, `fullnameOverride: ` + strings.Repeat("c", 63), strings.Repeat("c", 63)},
	} {
		all := test.values + "\nnetworkPolicy: {enabled: true, engines: {podSelector: {matchLabels: {app: vllm}}}}\nprometheusRule: {enabled: true}\nserviceMonitor: {enabled: true}\ndashboard: {enabled: true}\nautoscaling: {enabled: true}"
		text, err := renderAs(t, test.release, all, nil)
		if err != nil {
			t.Fatal(err)
		}
		o := read(t, []byte(text))
		o.consistent(t)
		if o.deployment.Name != test.want {
			t.Errorf("release %s with %s: the Deployment is %s, want %s", test.release, test.values, o.deployment.Name, test.want)
		}
		for name := range o.services {
			if errs := validation.IsDNS1035Label(name); len(errs) > 0 {
				t.Errorf("Service %s: %v", name, errs)
			}
		}
		if len(o.services) != 3 {
			t.Errorf("release %s has %d Services: two have one name", test.release, len(o.services))
		}
		for _, object := range o.all {
			for key, value := range object.(metav1.Object).GetLabels() {
				if errs := validation.IsValidLabelValue(value); len(errs) > 0 {
					t.Errorf("%s=%s: %v", key, value, errs)
				}
			}
		}
	}
}

func TestADigestNamesTheImage(t *testing.T) {
	chart, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	digest := "sha256:" + strings.Repeat("0a", 32)
	for values, want := range map[string]string{
		`image: {repository: r.example.com/k}`:                                       "r.example.com/k:" + chart.Metadata.AppVersion,
		`image: {repository: r.example.com/k, tag: v1}`:                              "r.example.com/k:v1",
		`image: {repository: r.example.com/k, digest: "` + digest + `"}`:             "r.example.com/k@" + digest,
		`image: {repository: r.example.com/k, tag: v1, digest: "` + digest + `"}`:    "r.example.com/k:v1@" + digest,
		`image: {repository: "r.example.com:5000/k", digest: "` + digest + `"}`:      "r.example.com:5000/k@" + digest,
		`{image: {repository: r.example.com/k, tag: v2}, nameOverride: other-image}`: "r.example.com/k:v2",
	} {
		o := mustRender(t, values)
		for _, container := range append(o.deployment.Spec.Template.Spec.Containers, o.pods[0].Spec.Containers...) {
			if container.Image != want {
				t.Errorf("%s: %s runs %s, want %s", values, container.Name, container.Image, want)
			}
		}
	}
}

func TestRoutersScaleWithTheirLoad(t *testing.T) {
	o := mustRender(t, allValueSets(t)["scaling-values.yaml"])
	if o.deployment.Spec.Replicas != nil {
		t.Errorf("each upgrade sets %d routers", *o.deployment.Spec.Replicas)
	}
	var scaler *autoscalingv2.HorizontalPodAutoscaler
	for _, object := range o.all {
		if s, ok := object.(*autoscalingv2.HorizontalPodAutoscaler); ok {
			scaler = s
		}
	}
	if scaler == nil || scaler.Spec.ScaleTargetRef.Name != o.deployment.Name || *scaler.Spec.MinReplicas != 2 || scaler.Spec.MaxReplicas != 10 ||
		len(scaler.Spec.Metrics) != 1 || *scaler.Spec.Metrics[0].Resource.Target.AverageUtilization != 60 || *scaler.Spec.Behavior.ScaleDown.StabilizationWindowSeconds != 600 {
		t.Errorf("the autoscaler is %+v", scaler)
	}
	trigger := `{type: prometheus, metadata: {serverAddress: "http://prometheus:9090", query: sum(kvpilot_router_requests_in_flight), threshold: "200"}}`
	o = mustRender(t, `keda: {enabled: true, triggers: [`+trigger+`], fallback: {failureThreshold: 3, replicas: 4}, behavior: {scaleDown: {stabilizationWindowSeconds: 600}}}`)
	var scaled *scaledObject
	for _, object := range o.all {
		if s, ok := object.(*scaledObject); ok {
			scaled = s
		}
	}
	if o.deployment.Spec.Replicas != nil || scaled == nil || scaled.Spec.ScaleTargetRef.Name != o.deployment.Name || scaled.Spec.MaxReplicaCount != 8 || scaled.Spec.Triggers[0].Type != "prometheus" {
		t.Errorf("KEDA gets %+v, the Deployment %v", scaled, o.deployment.Spec.Replicas)
	}
}

func TestTheLoadBalancersFieldsArrive(t *testing.T) {
	s := mustRender(t, allValueSets(t)["scaling-values.yaml"]).services["prod-kvpilot"].Spec
	if s.Type != corev1.ServiceTypeLoadBalancer || *s.LoadBalancerClass != "service.k8s.aws/nlb" || !slices.Equal(s.LoadBalancerSourceRanges, []string{"10.0.0.0/8"}) ||
		s.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal || s.Ports[0].Port != 80 || s.AllocateLoadBalancerNodePorts != nil {
		t.Errorf("the Service is %+v", s)
	}
	s = mustRender(t, `
service:
  type: LoadBalancer
  clusterIP: 10.96.0.7
  externalIPs: [192.0.2.7]
  loadBalancerIP: 192.0.2.8
  allocateLoadBalancerNodePorts: false
  internalTrafficPolicy: Local
  healthCheckNodePort: 30123
  trafficDistribution: PreferClose
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}
  ipFamilyPolicy: PreferDualStack
  ipFamilies: [IPv4, IPv6]
  nodePorts: {http: 30080, grpc: 30090}
`).services["prod-kvpilot"].Spec
	if s.ClusterIP != "10.96.0.7" || s.ExternalIPs[0] != "192.0.2.7" || s.LoadBalancerIP != "192.0.2.8" || *s.AllocateLoadBalancerNodePorts || //nolint:staticcheck // clouds read the field still
		*s.InternalTrafficPolicy != corev1.ServiceInternalTrafficPolicyLocal || s.HealthCheckNodePort != 30123 || *s.TrafficDistribution != "PreferClose" ||
		s.SessionAffinity != corev1.ServiceAffinityClientIP || *s.SessionAffinityConfig.ClientIP.TimeoutSeconds != 60 || *s.IPFamilyPolicy != corev1.IPFamilyPolicyPreferDualStack ||
		len(s.IPFamilies) != 2 || s.Ports[0].NodePort != 30080 || s.Ports[1].NodePort != 30090 {
		t.Errorf("the Service is %+v", s)
	}
}

func TestTheDashboardIsInAConfigMap(t *testing.T) {
	board := mustRender(t, allValueSets(t)["scaling-values.yaml"]).configMaps["prod-kvpilot-dashboard"]
	if board == nil || board.Labels["grafana_dashboard"] != "1" || board.Annotations["grafana_folder"] != "kvpilot" {
		t.Fatalf("Grafana's sidecar finds %+v", board)
	}
	var content struct{ Panels []any }
	if err := json.Unmarshal([]byte(board.Data["kvpilot.json"]), &content); err != nil || len(content.Panels) < 10 {
		t.Errorf("%d panels, %v", len(content.Panels), err)
	}
}

func TestCommonLabelsAreOnEveryObjectAndSelectNothing(t *testing.T) {
	o := mustRender(t, `
commonLabels: {team: serving, cost-center: 42, app.kubernetes.io/name: other}
networkPolicy: {enabled: true, engines: {podSelector: {matchLabels: {app: vllm}}}}
prometheusRule: {enabled: true}
serviceMonitor: {enabled: true}
dashboard: {enabled: true}
ingress: {enabled: true}
autoscaling: {enabled: true}
`)
	o.consistent(t)
	template := o.deployment.Spec.Template
	for _, object := range append([]metav1.Object{&template}, metas(o)...) {
		if l := object.GetLabels(); l["team"] != "serving" || l["cost-center"] != "42" || !strings.HasPrefix(l["app.kubernetes.io/name"], "kvpilot") {
			t.Errorf("%T %s has the labels %v", object, object.GetName(), l)
		}
	}
	if selector := o.deployment.Spec.Selector.MatchLabels; len(selector) != 2 {
		t.Errorf("the Deployment selects %v", selector)
	}
}

func metas(o *objects) (list []metav1.Object) {
	for _, object := range o.all {
		list = append(list, object.(metav1.Object))
	}
	return list
}

func TestExtrasArrive(t *testing.T) {
	o := mustRender(t, `
extraArgs: [--set=telemetry.log_level=debug]
extraContainers: [{name: proxy, image: "envoy:v1"}]
extraInitContainers: [{name: wait, image: "busybox:1"}]
priorityClassName: high
serviceAccount: {annotations: {eks.amazonaws.com/role-arn: "arn:x"}}
extraObjects:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: "{{ .Release.Name }}-extra"}, data: {a: b}}
  - |
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: {{ include "kvpilot.name" . }}-text}
`)
	spec := o.deployment.Spec.Template.Spec
	if len(spec.Containers) != 2 || spec.Containers[0].Name != "kvpilot" || spec.Containers[1].Name != "proxy" || len(spec.InitContainers) != 1 || spec.PriorityClassName != "high" ||
		spec.Containers[0].Args[3] != "--set=telemetry.log_level=debug" {
		t.Errorf("the pod is %+v", spec)
	}
	if o.configMaps["prod-extra"] == nil || o.configMaps["prod-kvpilot-text"] == nil {
		t.Errorf("the ConfigMaps are %v", o.configMaps)
	}
	for _, object := range o.all {
		if a, ok := object.(*corev1.ServiceAccount); ok && len(a.Annotations) != 1 {
			t.Errorf("the account is %+v", a)
		}
	}
	o.accepted(t)
}

// Values decide how a probe is made, and env counts more than config.
func TestProbesFollowTheSettings(t *testing.T) {
	for _, test := range []struct{ values, want string }{
		{``, "http"},
		{`{tls: {secret: c}}`, "http"},
		{`{tls: {secret: c}, config: {listen: {admin_tls: true}}}`, "HTTPS"},
		{`{tls: {secret: c}, env: [{name: KVPILOT_LISTEN_ADMIN_TLS, value: "true"}]}`, "HTTPS"},
		{`{tls: {secret: c}, config: {listen: {admin_tls: true}}, env: [{name: KVPILOT_LISTEN_ADMIN_TLS, value: "false"}]}`, "http"},
		{`{config: {admin: {keyed_health: true}}}`, "http"}, // no caller needs a key
		{`{keys: {secret: k}}`, "http"},
		{`{keys: {secret: k}, config: {admin: {keyed_health: true}}, probes: {key: {secret: p}}}`, "health --address=127.0.0.1:9091 --key-file=/etc/kvpilot-probe-key/key"},
		{`{env: [{name: KVPILOT_API_KEYS_FILE, value: /x/keys}, {name: KVPILOT_ADMIN_KEYED_HEALTH, value: "1"}], probes: {key: {secret: p, key: probe}}}`, "health --address=127.0.0.1:9091 --key-file=/etc/kvpilot-probe-key/probe"},
		{`{tls: {secret: c}, config: {listen: {admin_tls: true, client_ca: /x/ca.crt, admin_client_auth: required}}, probes: {certificate: {secret: p}}}`, "health --address=127.0.0.1:9091 --tls --cert=/etc/kvpilot-probe-certificate/tls.crt --cert-key=/etc/kvpilot-probe-certificate/tls.key"},
		{`{tls: {secret: c}, config: {listen: {client_ca: /x/ca.crt, client_auth: required}}}`, "http"}, // the admin address has no TLS
		{`{config: {api: {keys: [{name: a, key: sha256:x}]}, admin: {keyed_health: true}}, probes: {key: {secret: p}}}`, "health --address=127.0.0.1:9091 --key-file=/etc/kvpilot-probe-key/key"},
	} {
		o := mustRender(t, test.values)
		probe, got := o.deployment.Spec.Template.Spec.Containers[0].ReadinessProbe, "http"
		switch {
		case probe.Exec != nil:
			got = strings.Join(probe.Exec.Command[1:], " ")
		case probe.HTTPGet.Scheme != "":
			got = string(probe.HTTPGet.Scheme)
		}
		if got != test.want {
			t.Errorf("%s: the probe is %s, want %s", test.values, got, test.want)
		}
		o.mountsExist(t)
	}
}

func TestProbesTakeTheirTimesFromTheValues(t *testing.T) {
	o := mustRender(t, `probes: {startup: null, liveness: {periodSeconds: 20, failureThreshold: 6}, readiness: {initialDelaySeconds: 1}}`)
	c := o.deployment.Spec.Template.Spec.Containers[0]
	if c.StartupProbe != nil || c.LivenessProbe.PeriodSeconds != 20 || c.LivenessProbe.FailureThreshold != 6 || c.LivenessProbe.TimeoutSeconds != 5 || c.ReadinessProbe.InitialDelaySeconds != 1 {
		t.Errorf("the probes are %+v, %+v, %+v", c.StartupProbe, c.LivenessProbe, c.ReadinessProbe)
	}
}

func TestOnOpenShiftTheClusterChoosesTheUser(t *testing.T) {
	for name, test := range map[string]struct{ values, want string }{
		"by itself":            {``, "<nil> <nil> true"},
		"a user of the values": {`podSecurityContext: {runAsUser: 1000, fsGroup: 2000}`, "1000 2000 true"},
		"none at all":          {`{podSecurityContext: null, securityContext: null}`, "none"},
	} {
		text, err := renderOn(t, "security.openshift.io/v1", test.values)
		if err != nil {
			t.Fatal(err)
		}
		o := read(t, []byte(text))
		for _, spec := range []corev1.PodSpec{o.deployment.Spec.Template.Spec, o.pods[0].Spec} {
			got := "none"
			if c := spec.SecurityContext; c != nil {
				got = fmt.Sprint(number(c.RunAsUser), " ", number(c.FSGroup), " ", *c.RunAsNonRoot)
			}
			if got != test.want {
				t.Errorf("%s: the pod runs as %s, want %s", name, got, test.want)
			}
		}
	}
	c := mustRender(t, ``).deployment.Spec.Template.Spec.SecurityContext
	if number(c.RunAsUser) != "65532" || number(c.FSGroup) != "65532" {
		t.Errorf("elsewhere the pod runs as %+v", c)
	}
}

func number(n *int64) string {
	if n == nil {
		return "<nil>"
	}
	return fmt.Sprint(*n)
}
