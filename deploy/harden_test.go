package deploy_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
)

// named finds an object by its kind and the end of its name.
func named(t *testing.T, docs []object, kind, suffix string) object {
	t.Helper()
	for _, d := range docs {
		if name, _ := at(t, d, "metadata", "name").(string); d["kind"] == kind && strings.HasSuffix(name, suffix) {
			return d
		}
	}
	t.Fatalf("no %s …%s", kind, suffix)
	return nil
}

// servicePorts are the ports of each Service, by its name.
func servicePorts(t *testing.T, docs []object) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, d := range docs {
		if d["kind"] != "Service" {
			continue
		}
		name := at(t, d, "metadata", "name").(string)
		for _, p := range at(t, d, "spec", "ports").([]any) {
			all[name] = append(all[name], p.(object)["name"].(string))
		}
	}
	return all
}

// Whoever may call the router reached its metrics, profiles and console by the same Service.
func TestTheAdminPortIsNotOnThePublicService(t *testing.T) {
	values := documents(t, "values.yaml", readFile(t, "helm/kvpilot/values.yaml"))[0]
	ports := servicePorts(t, render(t, values))
	if !slices.Equal(ports["prod-kvpilot"], []string{"http", "grpc"}) || !slices.Equal(ports["prod-kvpilot-admin"], []string{"admin"}) ||
		!slices.Equal(ports["prod-kvpilot-peers"], []string{"gossip", "gossip-udp", "peer"}) || len(ports) != 3 {
		t.Errorf("the chart's Services have the ports %v", ports)
	}
	values["adminService"].(object)["enabled"] = false
	values["fleet"].(object)["enabled"] = false
	if ports = servicePorts(t, render(t, values)); len(ports) != 1 {
		t.Errorf("without the admin Service and a fleet: %v", ports)
	}
	if ports = servicePorts(t, documents(t, "service.yaml", readFile(t, "kubernetes/base/service.yaml"))); !slices.Equal(ports["kvpilot"], []string{"http", "grpc"}) || !slices.Equal(ports["kvpilot-admin"], []string{"admin"}) {
		t.Errorf("the base's Services have the ports %v", ports)
	}
}

// Any setting of listen made two keys "listen" in kvpilot.yaml, and the router crashed in a loop.
func TestTheChartTakesFurtherSettingsOfListen(t *testing.T) {
	values := documents(t, "values.yaml", readFile(t, "helm/kvpilot/values.yaml"))[0]
	values["config"].(object)["listen"] = object{"hosts": []any{"kvpilot.example.com"}}
	text := at(t, byKind(t, render(t, values), "ConfigMap"), "data", "kvpilot.yaml").(string)
	if c := settings(t, "the chart's kvpilot.yaml", []byte(text)); len(c.Listen.Hosts) != 1 || c.Listen.HTTP != ":8080" || c.Listen.DrainTimeout != 5*time.Minute {
		t.Errorf("the settings of listen are %+v", c.Listen)
	}
}

// downward is what a pod knows of itself.
var downward = map[string]string{"metadata.name": "kvpilot-7d9f-x2x", "status.podIP": "10.1.2.3"}

// settingsOf reads the settings of a pod: the file and its environment, as the program does.
func settingsOf(t *testing.T, text string, container any) config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kvpilot.yaml")
	if err := writeText(file, text); err != nil {
		t.Fatal(err)
	}
	var env []string
	list, _ := container.(object)["env"].([]any)
	for _, e := range list {
		value := e.(object)["value"]
		if value == nil {
			value = downward[at(t, e, "valueFrom", "fieldRef", "fieldPath").(string)]
		}
		env = append(env, fmt.Sprintf("%s=%v", e.(object)["name"], value))
	}
	c, err := config.Load(config.Source{File: file, Env: env})
	if err != nil {
		t.Fatalf("%v with %v", err, env)
	}
	return c
}

// mounted reports whether a file is in one of the container's mounts, of a volume that the pod has.
func mounted(t *testing.T, pod any, file string) bool {
	t.Helper()
	for _, m := range at(t, pod, "containers", 0, "volumeMounts").([]any) {
		if !strings.HasPrefix(file, fmt.Sprint(m.(object)["mountPath"], "/")) {
			continue
		}
		for _, v := range at(t, pod, "volumes").([]any) {
			if v.(object)["name"] == m.(object)["name"] && at(t, v, "secret", "secretName") != "" {
				return true
			}
		}
	}
	return false
}

func TestTheChartTakesKeysAndCertificatesFromSecrets(t *testing.T) {
	values := documents(t, "values.yaml", readFile(t, "helm/kvpilot/values.yaml"))[0]
	values["keys"].(object)["secret"] = "the-keys"
	values["tls"].(object)["secret"] = "the-tls"
	engines := values["engines"].(object)
	engines["key"].(object)["secret"] = "the-engine-key"
	engines["tls"] = object{"secret": "the-engine-tls", "clientCertificate": true, "serverName": "engine.internal"}
	values["env"] = []any{object{"name": "KVPILOT_TELEMETRY_LOG_LEVEL", "value": "debug"}}
	docs := render(t, values)
	pod := at(t, byKind(t, docs, "Deployment"), "spec", "template", "spec")
	c := settingsOf(t, at(t, byKind(t, docs, "ConfigMap"), "data", "kvpilot.yaml").(string), at(t, pod, "containers", 0))
	if c.Telemetry.LogLevel != "debug" || c.Registry.Access.TLS.ServerName != "engine.internal" {
		t.Errorf("the settings are %+v", c.Registry.Access)
	}
	for _, file := range []string{
		c.API.KeysFile, c.Listen.TLSCert, c.Listen.TLSKey, c.Registry.Access.APIKeyFile,
		c.Registry.Access.TLS.CAFile, c.Registry.Access.TLS.CertFile, c.Registry.Access.TLS.KeyFile,
	} {
		if file == "" || !mounted(t, pod, file) {
			t.Errorf("%q is in no Secret that is mounted", file)
		}
	}
	for _, p := range at(t, named(t, docs, "Service", "kvpilot"), "spec", "ports").([]any) {
		if p.(object)["name"] == "http" && p.(object)["appProtocol"] != "https" || p.(object)["appProtocol"] == "kubernetes.io/h2c" {
			t.Errorf("with TLS a port is %v", p)
		}
	}
	if at(t, byKind(t, docs, "Deployment"), "spec", "template", "metadata", "annotations", "checksum/config") == "" {
		t.Error("pods do not restart with other settings")
	}
	values["restartOnConfigChange"] = false
	notes := at(t, byKind(t, render(t, values), "Deployment"), "spec", "template", "metadata", "annotations").(object)
	if notes["checksum/config"] != nil {
		t.Error("pods restart with other settings, though a reload was asked for")
	}
}

func TestTheHardenedOverlayFitsTheBase(t *testing.T) {
	patch := documents(t, "secrets.yaml", readFile(t, "kubernetes/hardened/secrets.yaml"))[0]
	pod := at(t, patch, "spec", "template", "spec")
	c := settingsOf(t, string(readFile(t, "kubernetes/base/kvpilot.yaml")), at(t, pod, "containers", 0))
	for _, file := range []string{c.API.KeysFile, c.Listen.TLSCert, c.Listen.TLSKey} {
		if file == "" || !mounted(t, pod, file) {
			t.Errorf("%q is in no Secret that is mounted", file)
		}
	}
	list := documents(t, "kustomization.yaml", readFile(t, "kubernetes/hardened/kustomization.yaml"))[0]
	for _, name := range append(at(t, list, "resources").([]any), at(t, list, "patches", 0, "path")) {
		if matches, err := filepath.Glob(filepath.Join("kubernetes/hardened", name.(string))); err != nil || len(matches) != 1 {
			t.Errorf("there is no %v", name)
		}
	}
	var docs []object
	for _, name := range []string{"base/deployment.yaml", "hardened/networkpolicy.yaml", "with-vllm/vllm.yaml"} {
		docs = append(docs, documents(t, name, readFile(t, filepath.Join("kubernetes", name)))...)
	}
	checkPolicies(t, docs)
}

func TestTheChartsNetworkPolicies(t *testing.T) {
	values := documents(t, "values.yaml", readFile(t, "helm/kvpilot/values.yaml"))[0]
	for _, d := range render(t, values) {
		if d["kind"] == "NetworkPolicy" {
			t.Error("there are policies that nobody asked for")
		}
	}
	policy := values["networkPolicy"].(object)
	policy["enabled"] = true
	policy["callers"] = []any{object{"namespaceSelector": object{"matchLabels": object{"kvpilot": "caller"}}}}
	policy["engines"] = object{"podSelector": object{"matchLabels": object{"app.kubernetes.io/name": "vllm"}}, "alsoFrom": []any{object{"podSelector": object{"matchLabels": object{"app": "prometheus"}}}}}
	docs := render(t, values)
	checkPolicies(t, append(docs, documents(t, "vllm.yaml", readFile(t, "kubernetes/with-vllm/vllm.yaml"))...))
	if from := at(t, named(t, docs, "NetworkPolicy", "-engines"), "spec", "ingress", 0, "from").([]any); len(from) != 2 {
		t.Errorf("the engines take connections from %v", from)
	}
	policy["operators"] = []any{}
	if rules := at(t, named(t, render(t, values), "NetworkPolicy", "kvpilot"), "spec", "ingress").([]any); len(rules) != 2 || strings.Contains(fmt.Sprint(rules), "admin") {
		t.Errorf("without operators the rules are %v: the admin port is nobody's", rules)
	}
}

// checkPolicies compares the two policies with the pods that they are for.
func checkPolicies(t *testing.T, docs []object) {
	t.Helper()
	router := at(t, named(t, docs, "Deployment", "kvpilot"), "spec", "template")
	engine := at(t, named(t, docs, "StatefulSet", "vllm"), "spec", "template")
	selects := func(selector, pod any) error {
		labels := at(t, pod, "metadata", "labels").(object)
		for key, value := range at(t, selector, "matchLabels").(object) {
			if labels[key] != value {
				return fmt.Errorf("the selector wants %s=%v, pods have %v", key, value, labels[key])
			}
		}
		return nil
	}
	own, theirs := named(t, docs, "NetworkPolicy", "kvpilot"), named(t, docs, "NetworkPolicy", "kvpilot-engines")
	if err := errors.Join(
		selects(at(t, own, "spec", "podSelector"), router), selects(at(t, theirs, "spec", "podSelector"), engine),
		selects(at(t, theirs, "spec", "ingress", 0, "from", 0, "podSelector"), router),
	); err != nil {
		t.Error(err)
	}
	allowed := map[string]string{} // port to its callers
	for _, rule := range at(t, own, "spec", "ingress").([]any) {
		for _, p := range at(t, rule, "ports").([]any) {
			allowed[fmt.Sprint(p.(object)["port"])] = fmt.Sprint(at(t, rule, "from"))
		}
	}
	for _, p := range at(t, router, "spec", "containers", 0, "ports").([]any) {
		if name := fmt.Sprint(p.(object)["name"]); allowed[name] == "" {
			t.Errorf("the port %s is closed, or open to all: %v", name, allowed)
		}
	}
	for _, port := range []string{"admin", "gossip", "gossip-udp", "peer"} {
		if allowed[port] == allowed["http"] {
			t.Errorf("callers reach the port %s: %v", port, allowed)
		}
	}
}

func writeText(name, text string) error { return os.WriteFile(name, []byte(text), 0o600) }
