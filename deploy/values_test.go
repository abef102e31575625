package deploy_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
)

// exampleValues reads the value sets that the chart ships, over its defaults.
func exampleValues(t *testing.T) map[string]object {
	t.Helper()
	sets := map[string]object{}
	for _, name := range glob(t, "helm/kvpilot/ci/*-values.yaml") {
		values := documents(t, "values.yaml", readFile(t, "helm/kvpilot/values.yaml"))[0]
		sets[strings.TrimSuffix(filepath.Base(name), "-values.yaml")] = overlay(values, documents(t, name, readFile(t, name))[0])
	}
	return sets
}

// overlay puts the values of over on those of under, as Helm does.
func overlay(under, over object) object {
	for key, value := range over {
		inner, both := under[key].(object)
		theirs, ok := value.(object)
		switch {
		case both && ok:
			overlay(inner, theirs)
		case value == nil:
			delete(under, key)
		default:
			under[key] = value
		}
	}
	return under
}

func TestTheExampleValuesFitTheProgram(t *testing.T) {
	sets := exampleValues(t)
	if len(sets) < 10 {
		t.Errorf("%d value sets", len(sets))
	}
	for name, values := range sets {
		t.Run(name, func(t *testing.T) {
			docs := render(t, values)
			text := at(t, byKind(t, docs, "ConfigMap"), "data", "kvpilot.yaml").(string)
			settingsOf(t, text, at(t, byKind(t, docs, "Deployment"), "spec", "template", "spec", "containers", 0))
			for _, d := range docs {
				if d["apiVersion"] == nil || d["kind"] == nil || at(t, d, "metadata", "name") == "" {
					t.Errorf("incomplete object %v", d)
				}
			}
		})
	}
}

func TestMonitoringHasTheAlertsOfThisRepository(t *testing.T) {
	docs := render(t, exampleValues(t)["httproute-monitoring"])
	scraped := at(t, documents(t, "prometheus.yml", readFile(t, "prometheus/prometheus.yml"))[0], "scrape_configs", 0, "job_name")
	monitor := byKind(t, docs, "ServiceMonitor")
	if job := at(t, monitor, "spec", "endpoints", 0, "relabelings", 0, "replacement"); job != scraped {
		t.Errorf("the job is %v, the alerts are for %v", job, scraped)
	}
	service := named(t, docs, "Service", "-admin")
	for name, value := range at(t, monitor, "spec", "selector", "matchLabels").(object) {
		if at(t, service, "metadata", "labels", name) != value {
			t.Errorf("the ServiceMonitor selects %s=%v, which the admin Service does not have", name, value)
		}
	}
	if named(t, docs, "Service", "kvpilot")["metadata"].(object)["labels"].(object)["kvpilot.service"] != nil {
		t.Error("the ServiceMonitor selects the callers' Service too")
	}
	for _, file := range at(t, documents(t, "prometheus.yml", readFile(t, "prometheus/prometheus.yml"))[0], "rule_files").([]any) {
		short := strings.TrimSuffix(filepath.Base(file.(string)), ".yml")
		groups := at(t, named(t, docs, "PrometheusRule", "-"+short), "spec", "groups").([]any)
		want := at(t, documents(t, short, readFile(t, "prometheus/"+short+".yml"))[0], "groups").([]any)
		rules, wantRules := at(t, groups[0], "rules").([]any), at(t, want[0], "rules").([]any)
		if len(groups) != len(want) || len(rules) != len(wantRules) || at(t, rules[0], "expr") != at(t, wantRules[0], "expr") {
			t.Errorf("%s: %d groups with %d rules first, want %d and %d", short, len(groups), len(rules), len(want), len(wantRules))
		}
	}
	notes := at(t, byKind(t, docs, "Deployment"), "spec", "template", "metadata", "annotations").(object)
	if notes["prometheus.io/scrape"] != nil {
		t.Error("the pods are scraped twice")
	}
}

func TestRoutesLeadToTheRouter(t *testing.T) {
	docs := render(t, exampleValues(t)["httproute-monitoring"])
	ports := map[any]any{}
	for _, p := range at(t, named(t, docs, "Service", "kvpilot"), "spec", "ports").([]any) {
		ports[p.(object)["name"]] = p.(object)["port"]
	}
	for kind, port := range map[string]string{"HTTPRoute": "http", "GRPCRoute": "grpc"} {
		backend := at(t, byKind(t, docs, kind), "spec", "rules", 0, "backendRefs", 0).(object)
		if backend["name"] != "prod-kvpilot" || backend["port"] != ports[port] {
			t.Errorf("%s leads to %v, the Service has %v", kind, backend, ports)
		}
	}
	if limit := at(t, byKind(t, docs, "HTTPRoute"), "spec", "rules", 0, "timeouts", "request"); limit != "0s" {
		t.Errorf("streams end after %v", limit)
	}
	ingress := byKind(t, render(t, exampleValues(t)["tls"]), "Ingress")
	if backend := at(t, ingress, "spec", "rules", 0, "http", "paths", 0, "backend", "service"); at(t, backend, "name") != "prod-kvpilot" || at(t, backend, "port", "name") != "http" {
		t.Errorf("the Ingress leads to %v", backend)
	}
}

func TestThePersistentIndex(t *testing.T) {
	docs := render(t, exampleValues(t)["persistence"])
	c := settings(t, "kvpilot.yaml", []byte(at(t, byKind(t, docs, "ConfigMap"), "data", "kvpilot.yaml").(string)))
	deployment := byKind(t, docs, "Deployment")
	pod := at(t, deployment, "spec", "template", "spec")
	if at(t, deployment, "spec", "strategy", "type") != "Recreate" || at(t, pod, "securityContext", "fsGroup") == nil {
		t.Errorf("strategy %v: two pods cannot have one volume", at(t, deployment, "spec", "strategy"))
	}
	folder := at(t, last(t, pod, "containers", 0, "volumeMounts"), "mountPath").(string)
	claim := at(t, last(t, pod, "volumes"), "persistentVolumeClaim", "claimName")
	if !strings.HasPrefix(c.KVIndex.Snapshot, folder+"/") || claim != at(t, byKind(t, docs, "PersistentVolumeClaim"), "metadata", "name") {
		t.Errorf("the index goes to %s, the volume of the claim %v is at %s", c.KVIndex.Snapshot, claim, folder)
	}
}

// HAProxy passes only headers that it is told of; nginx passes all.
func TestHAProxyPassesTheHeadersOfSessions(t *testing.T) {
	script := string(readFile(t, "haproxy/kvpilot.lua"))
	router := config.Default().Router
	for _, name := range append(slices.Clone(router.SessionHeaders), router.SessionHeader) {
		if !strings.Contains(script, `"`+name+`"`) {
			t.Errorf("kvpilot.lua does not pass %s", name)
		}
	}
}

func TestHelmTestAsksTheRouter(t *testing.T) {
	docs := render(t, documents(t, "values.yaml", readFile(t, "helm/kvpilot/values.yaml"))[0])
	pod := byKind(t, docs, "Pod")
	if !slices.Equal(at(t, pod, "spec", "containers", 0, "args").([]any), []any{"replicas", "--address=prod-kvpilot.serving.svc:9090"}) {
		t.Errorf("it runs %v", at(t, pod, "spec", "containers", 0, "args"))
	}
	labels := at(t, pod, "metadata", "labels").(object)
	for _, d := range docs {
		if d["kind"] == "Service" && labels["app.kubernetes.io/name"] == at(t, d, "spec", "selector", "app.kubernetes.io/name") {
			t.Error("the Services send requests to the test")
		}
	}
	secured := exampleValues(t)["tls"]
	container := at(t, byKind(t, render(t, secured), "Pod"), "spec", "containers", 0)
	if !slices.Contains(at(t, container, "args").([]any), any("--ca=/etc/kvpilot-tls/ca.crt")) || at(t, container, "env", 0, "name") != "KVPILOT_KEY" {
		t.Errorf("with TLS and keys it runs %v", container)
	}
	secured["test"].(object)["key"].(object)["secret"] = ""
	for _, d := range render(t, secured) {
		if d["kind"] == "Pod" {
			t.Error("without a key the test asks a router that needs one")
		}
	}
}
