package deploy

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	istiov1 "istio.io/client-go/pkg/apis/networking/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/yaml"
	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// objects are what Kubernetes would get.
type objects struct {
	all         []runtime.Object
	deployment  *appsv1.Deployment
	services    map[string]*corev1.Service
	configMaps  map[string]*corev1.ConfigMap
	secrets     map[string]*corev1.Secret
	policies    map[string]*networkingv1.NetworkPolicy
	claims      map[string]*corev1.PersistentVolumeClaim
	disruptions []*policyv1.PodDisruptionBudget
	pods        []*corev1.Pod
}

// read decodes each document strictly: a field that its type does not have is an error.
func read(t *testing.T, manifests []byte) *objects {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme,
		gatewayv1.Install, inferencev1.Install, istiov1.AddToScheme, monitoringv1.AddToScheme, autoscalingv2.AddToScheme, addKEDA,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	o := &objects{
		services: map[string]*corev1.Service{}, configMaps: map[string]*corev1.ConfigMap{},
		claims:  map[string]*corev1.PersistentVolumeClaim{},
		secrets: map[string]*corev1.Secret{}, policies: map[string]*networkingv1.NetworkPolicy{},
	}
	reader := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(manifests)))
	buffer := make([]byte, 1<<20)
	for {
		n, err := reader.Read(buffer)
		if err == io.EOF { //nolint:errorlint // this reader returns it as it is
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text := buffer[:n]
		if len(bytes.TrimSpace(stripComments(text))) == 0 {
			continue
		}
		object, kind, err := decoder.Decode(text, nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		for _, err := range faults(t, *kind, text) {
			t.Errorf("%s: %v in\n%s", kind.Kind, err, text)
		}
		o.add(t, object)
	}
	if o.deployment == nil {
		t.Fatal("no Deployment")
	}
	return o
}

func stripComments(text []byte) []byte {
	var rest []byte
	for line := range bytes.Lines(text) {
		if trimmed := bytes.TrimSpace(line); len(trimmed) > 0 && trimmed[0] != '#' && !bytes.Equal(trimmed, []byte("---")) {
			rest = append(rest, line...)
		}
	}
	return rest
}

func (o *objects) add(t *testing.T, object runtime.Object) {
	t.Helper()
	o.all = append(o.all, object)
	switch v := object.(type) {
	case *appsv1.Deployment:
		o.deployment = v
	case *corev1.Service:
		o.services[v.Name] = v
	case *corev1.ConfigMap:
		o.configMaps[v.Name] = v
	case *corev1.PersistentVolumeClaim:
		o.claims[v.Name] = v
	case *corev1.Secret:
		o.secrets[v.Name] = v
	case *networkingv1.NetworkPolicy:
		o.policies[v.Name] = v
	case *corev1.Pod:
		o.pods = append(o.pods, v)
	case *policyv1.PodDisruptionBudget:
		o.disruptions = append(o.disruptions, v)
	}
	if meta, ok := object.(metav1.Object); ok {
		if errs := validation.IsDNS1123Subdomain(meta.GetName()); len(errs) > 0 {
			t.Errorf("%T %q: %v", object, meta.GetName(), errs)
		}
	}
}

// consistent checks what one object says about another one.
func (o *objects) consistent(t *testing.T) {
	t.Helper()
	pod := o.deployment.Spec.Template
	own := labels.Set(pod.Labels)
	matches := func(what string, selector *metav1.LabelSelector) {
		s, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil || s.Empty() || !s.Matches(own) {
			t.Errorf("%s selects %v (%v), the routers have %v", what, s, err, own)
		}
	}
	matches("the Deployment", o.deployment.Spec.Selector)
	for _, budget := range o.disruptions {
		if budget.Spec.Selector.MatchLabels["app.kubernetes.io/name"] != pod.Labels["app.kubernetes.io/name"] {
			continue // the engines'
		}
		matches("the PodDisruptionBudget", budget.Spec.Selector)
	}
	for _, spread := range pod.Spec.TopologySpreadConstraints {
		matches("the topology spread", spread.LabelSelector)
	}
	if pod.Spec.Affinity != nil && pod.Spec.Affinity.PodAntiAffinity != nil {
		for _, term := range pod.Spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			matches("the anti-affinity", term.PodAffinityTerm.LabelSelector)
		}
	}
	names := map[string]corev1.Protocol{}
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if errs := validation.IsValidPortName(port.Name); len(errs) > 0 || names[port.Name] != "" {
				t.Errorf("port %q: %v, or twice", port.Name, errs)
			}
			names[port.Name] = protocol(port.Protocol)
		}
	}
	for _, service := range o.services {
		if service.Spec.Selector["app.kubernetes.io/name"] != pod.Labels["app.kubernetes.io/name"] {
			continue // the engines'
		}
		if !labels.SelectorFromSet(service.Spec.Selector).Matches(own) {
			t.Errorf("Service %s selects %v, the routers have %v", service.Name, service.Spec.Selector, own)
		}
		for _, port := range service.Spec.Ports {
			if names[port.TargetPort.StrVal] != protocol(port.Protocol) {
				t.Errorf("Service %s: port %s leads to %s over %s, which the pod does not have", service.Name, port.Name, port.TargetPort.String(), port.Protocol)
			}
		}
	}
	o.mountsExist(t)
}

func protocol(p corev1.Protocol) corev1.Protocol {
	if p == "" {
		return corev1.ProtocolTCP
	}
	return p
}

func (o *objects) mountsExist(t *testing.T) {
	t.Helper()
	spec := o.deployment.Spec.Template.Spec
	for _, mount := range spec.Containers[0].VolumeMounts {
		if !slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name }) {
			t.Errorf("no volume %q for %s", mount.Name, mount.MountPath)
		}
	}
	for _, volume := range spec.Volumes {
		if claim := volume.PersistentVolumeClaim; claim != nil && o.claims[claim.ClaimName] == nil {
			t.Errorf("volume %s: there is no claim %q", volume.Name, claim.ClaimName)
		}
		if volume.ConfigMap != nil && o.configMaps[volume.ConfigMap.Name] == nil {
			t.Errorf("volume %s: there is no ConfigMap %q", volume.Name, volume.ConfigMap.Name)
		}
	}
}

// settings returns the text of kvpilot.yaml as the pod has it.
func (o *objects) settings(t *testing.T) string {
	t.Helper()
	for _, volume := range o.deployment.Spec.Template.Spec.Volumes {
		if volume.ConfigMap != nil && volume.Name == "config" {
			return o.configMaps[volume.ConfigMap.Name].Data["kvpilot.yaml"]
		}
	}
	t.Fatal("no settings are mounted")
	return ""
}

func program(t *testing.T) string {
	t.Helper()
	path := os.Getenv("DEPLOY_BINARY")
	if path == "" {
		t.Fatal("DEPLOY_BINARY is not set: run make test-deploy")
	}
	return path
}

// accepted passes the settings and the environment of the pod to the program, which checks them.
func (o *objects) accepted(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "kvpilot.yaml")
	if err := os.WriteFile(file, []byte(inSecrets.ReplaceAllStringFunc(o.settings(t), func(path string) string { return secretFile(t, dir, path) })), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), program(t), "serve", "--config", file, "--check-config")
	command.Env = o.environment(t, dir)
	if said, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\nwith %v and\n%s", err, said, command.Env, o.settings(t))
	}
}

// environment is that of the pod; files of Secrets are made below dir.
func (o *objects) environment(t *testing.T, dir string) []string {
	t.Helper()
	fields := map[string]string{"metadata.name": "kvpilot-7d9f-x2x", "status.podIP": "10.1.2.3", "metadata.namespace": "serving"}
	var env []string
	if links := o.deployment.Spec.Template.Spec.EnableServiceLinks; links == nil || *links {
		t.Error("Kubernetes adds variables for each Service of the namespace: their number is not bounded")
	}
	for _, e := range o.deployment.Spec.Template.Spec.Containers[0].Env {
		value := e.Value
		if e.ValueFrom != nil {
			if value = fields[e.ValueFrom.FieldRef.FieldPath]; value == "" {
				t.Errorf("%s comes from %v", e.Name, e.ValueFrom)
			}
		}
		if inSecrets.MatchString(value) {
			value = secretFile(t, dir, value)
		}
		env = append(env, fmt.Sprintf("%s=%s", e.Name, value))
	}
	return env
}

// inSecrets matches the files of mounted Secrets.
var inSecrets = regexp.MustCompile(`/etc/kvpilot-[a-z./-]+`)

// secretFile makes a file in the place of one in a Secret.
func secretFile(t *testing.T, dir, path string) string {
	t.Helper()
	at := filepath.Join(dir, path)
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte("a-key-of-the-test-with-many-bytes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return at
}
