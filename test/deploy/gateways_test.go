package deploy

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	istiov1 "istio.io/client-go/pkg/apis/networking/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

// objectsOf are those of one type.
func objectsOf[T any](o *objects) (list []T) {
	for _, object := range o.all {
		if v, ok := object.(T); ok {
			list = append(list, v)
		}
	}
	return list
}

// gatewayFolders are those of deploy/gateway-api that add a gateway, and its GatewayClass.
var gatewayFolders = map[string]string{"istio": "istio", "envoy-ai-gateway": "envoy-ai-gateway", "kgateway": "kgateway", "agentgateway": "agentgateway"}

func TestEachGatewayHasItsManifests(t *testing.T) {
	found, err := os.ReadDir("../../deploy/gateway-api")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range found {
		if entry.IsDir() && entry.Name() != "base" && gatewayFolders[entry.Name()] == "" {
			t.Errorf("deploy/gateway-api/%s is not tested", entry.Name())
		}
	}
	for folder, class := range gatewayFolders {
		t.Run(folder, func(t *testing.T) {
			o := built(t, "../gateway-api/"+folder)
			o.consistent(t)
			o.accepted(t)
			gateways, routes := objectsOf[*gatewayv1.Gateway](o), objectsOf[*gatewayv1.HTTPRoute](o)
			if len(gateways) != 1 || string(gateways[0].Spec.GatewayClassName) != class || len(routes) != 1 {
				t.Fatalf("%d gateways and %d routes", len(gateways), len(routes))
			}
			if parent := routes[0].Spec.ParentRefs[0]; string(parent.Name) != gateways[0].Name {
				t.Errorf("the route is of %s, the gateway is %s", parent.Name, gateways[0].Name)
			}
			if limit := routes[0].Spec.Rules[0].Timeouts; limit == nil || *limit.Request != "0s" {
				t.Errorf("streams end after %v", limit)
			}
			pool := onePool(t, o)
			if to := routes[0].Spec.Rules[0].BackendRefs[0].BackendObjectReference; string(*to.Kind) != "InferencePool" || string(*to.Group) != "inference.networking.k8s.io" || string(to.Name) != pool.Name {
				t.Errorf("the route leads to %v", to)
			}
		})
	}
}

// onePool returns the InferencePool, which must lead to the routers and to the engines of deploy/kubernetes/with-vllm.
func onePool(t *testing.T, o *objects) *inferencev1.InferencePool {
	t.Helper()
	pools := objectsOf[*inferencev1.InferencePool](o)
	if len(pools) != 1 {
		t.Fatalf("%d pools", len(pools))
	}
	pool := pools[0]
	ref := pool.Spec.EndpointPickerRef
	service := o.services[string(ref.Name)]
	if service == nil {
		t.Fatalf("the endpoint picker is the Service %s, which is not there", ref.Name)
	}
	at := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == int32(ref.Port.Number) })
	if at < 0 || service.Spec.Ports[at].Name != "epp" || *service.Spec.Ports[at].AppProtocol != "http2" {
		t.Errorf("the endpoint picker is at port %d, the Service has %v", ref.Port.Number, service.Spec.Ports)
	}
	return pool
}

// Clients reach the engines by the gateway alone.
func TestTheManifestsOfThePickerTakeNoHTTP(t *testing.T) {
	o := built(t, "../gateway-api/base")
	for _, port := range o.services["kvpilot"].Spec.Ports {
		if port.Name == "http" || port.Port == 8080 {
			t.Errorf("the Service has %v", port)
		}
	}
	for _, port := range o.deployment.Spec.Template.Spec.Containers[0].Ports {
		if port.Name == "http" || port.ContainerPort == 8080 {
			t.Errorf("the pods have %v", port)
		}
	}
}

func TestThePoolSelectsTheExamplesEngines(t *testing.T) {
	pool := onePool(t, built(t, "../gateway-api/base"))
	text, err := os.ReadFile("../../deploy/kubernetes/with-vllm/vllm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var set struct {
		Spec struct {
			Template corev1.PodTemplateSpec
		}
	}
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		if bytes.Contains(document, []byte("kind: StatefulSet")) {
			if err := yaml.Unmarshal(document, &set); err != nil {
				t.Fatal(err)
			}
		}
	}
	selected := labels.Set{}
	for name, value := range pool.Spec.Selector.MatchLabels {
		selected[string(name)] = string(value)
	}
	if !labels.SelectorFromSet(selected).Matches(labels.Set(set.Spec.Template.Labels)) || set.Spec.Template.Spec.Containers[0].Ports[0].ContainerPort != int32(pool.Spec.TargetPorts[0].Number) {
		t.Errorf("the pool selects %v at %v, the engines have %v at %v", selected, pool.Spec.TargetPorts, set.Spec.Template.Labels, set.Spec.Template.Spec.Containers[0].Ports)
	}
}

// Istio needs to know that the endpoint picker uses TLS.
func TestIstioCallsThePickerWithTLS(t *testing.T) {
	o := built(t, "../gateway-api/istio")
	rules := objectsOf[*istiov1.DestinationRule](o)
	if len(rules) != 1 {
		t.Fatalf("%d rules", len(rules))
	}
	ports := rules[0].Spec.TrafficPolicy.PortLevelSettings
	if o.services[rules[0].Spec.Host] == nil || len(ports) != 1 || ports[0].Port.Number != uint32(onePool(t, o).Spec.EndpointPickerRef.Port.Number) || !ports[0].Tls.InsecureSkipVerify.GetValue() {
		t.Errorf("the rule is %v", rules[0].Spec.String())
	}
}

// The stand-alone Envoy is a container next to the router, which it finds on its own loopback.
func TestTheStandAloneEnvoyIsNextToTheRouter(t *testing.T) {
	o := built(t, "../envoy")
	o.consistent(t)
	o.accepted(t)
	spec := o.deployment.Spec.Template.Spec
	if len(spec.Containers) != 2 || spec.Containers[0].Name != "kvpilot" || spec.Containers[1].Name != "envoy" {
		t.Fatalf("the containers are %v", spec.Containers)
	}
	file := ""
	for _, v := range spec.Volumes {
		if v.Name == spec.Containers[1].VolumeMounts[0].Name {
			file = o.configMaps[v.ConfigMap.Name].Data[filepath.Base(spec.Containers[1].Args[1])]
		}
	}
	var settings struct {
		StaticResources struct {
			Listeners []struct {
				Address struct {
					SocketAddress struct {
						PortValue int32 `json:"port_value"`
					} `json:"socket_address"`
				}
			}
		} `json:"static_resources"`
	}
	if err := yaml.Unmarshal([]byte(file), &settings); err != nil || len(settings.StaticResources.Listeners) != 1 {
		t.Fatalf("%v: %d listeners", err, len(settings.StaticResources.Listeners))
	}
	if port := settings.StaticResources.Listeners[0].Address.SocketAddress.PortValue; port != spec.Containers[1].Ports[0].ContainerPort {
		t.Errorf("Envoy listens on %d, the container has %v", port, spec.Containers[1].Ports)
	}
	if !strings.Contains(file, fmt.Sprintf("{address: 127.0.0.1, port_value: %d}", onePool(t, o).Spec.EndpointPickerRef.Port.Number)) {
		t.Error("Envoy does not ask the router of its pod")
	}
	if grace := *o.deployment.Spec.Template.Spec.TerminationGracePeriodSeconds; spec.Containers[1].Lifecycle.PreStop.Sleep.Seconds >= grace || spec.Containers[1].Lifecycle.PreStop.Sleep.Seconds < 300 {
		t.Errorf("Envoy lives for %v s of the pod's %d s", spec.Containers[1].Lifecycle.PreStop.Sleep, grace)
	}
}

// Definitions must find what types alone do not: without them, the checks of the manifests prove little.
func TestDefinitionsRejectWhatTypesAccept(t *testing.T) {
	pool := schema.GroupVersionKind{Group: "inference.networking.k8s.io", Version: "v1", Kind: "InferencePool"}
	for name, kind := range map[string]schema.GroupVersionKind{
		"InferencePool": pool, "HTTPRoute": {Group: "gateway.networking.k8s.io", Version: "v1", Kind: "HTTPRoute"},
		"Gateway": {Group: "gateway.networking.k8s.io", Version: "v1", Kind: "Gateway"}, "DestinationRule": {Group: "networking.istio.io", Version: "v1", Kind: "DestinationRule"},
	} {
		if crds(t)[kind] == nil {
			t.Errorf("%s has no definition", name)
		}
	}
	for _, spec := range []string{
		`{selector: {matchLabels: {app: vllm}}, targetPorts: []}`,
		`{selector: {matchLabels: {app: vllm}}, targetPorts: [{number: 70000}]}`,
		`{selector: {matchLabels: {app: vllm}}, targetPorts: [{number: 8000}], endpointPickerRef: {name: p, failureMode: Open}}`,
		`{selector: {matchLabels: {app: vllm}}, targetPorts: [{number: 8000}], endpointPickerRef: {name: p}}`, // a Service needs a port
		`{targetPorts: [{number: 8000}]}`,
	} {
		if errs := faults(t, pool, []byte("apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: p}\nspec: "+spec+"\n")); len(errs) == 0 {
			t.Errorf("%s is accepted", spec)
		}
	}
}
