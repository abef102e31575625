// Package deploy_test checks that what is shipped for Kubernetes fits the program: that manifests
// and the chart are well-formed and that the settings in them are settings of this version.
package deploy_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/kvpilot/kvpilot/server/config"
)

type object = map[string]any

// documents reads all YAML documents of a text.
func documents(t *testing.T, name string, text []byte) []object {
	t.Helper()
	var all []object
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var doc object
		if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		if len(doc) > 0 {
			all = append(all, doc)
		}
	}
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// settings reads and validates a kvpilot.yaml as the program does.
func settings(t *testing.T, name string, text []byte) config.Config {
	t.Helper()
	c := config.Default()
	if err := errors.Join(config.Parse(text, &c), c.Validate()); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, text)
	}
	return c
}

// at follows a path of keys and list indexes.
func at(t *testing.T, v any, path ...any) any {
	t.Helper()
	for _, step := range path {
		switch step := step.(type) {
		case string:
			v = v.(object)[step]
		case int:
			v = v.([]any)[step]
		}
		if v == nil {
			t.Fatalf("nothing at %v", path)
		}
	}
	return v
}

// last is the last entry of a list.
func last(t *testing.T, v any, path ...any) any {
	t.Helper()
	list := at(t, v, path...).([]any)
	return list[len(list)-1]
}

func byKind(t *testing.T, docs []object, kind string) object {
	t.Helper()
	for _, d := range docs {
		if d["kind"] == kind {
			return d
		}
	}
	t.Fatalf("no %s", kind)
	return nil
}

func TestTheKustomizeBaseFitsTheProgram(t *testing.T) {
	list := documents(t, "kustomization.yaml", readFile(t, "kubernetes/base/kustomization.yaml"))[0]
	var docs []object
	for _, name := range at(t, list, "resources").([]any) {
		docs = append(docs, documents(t, name.(string), readFile(t, filepath.Join("kubernetes/base", name.(string))))...)
	}
	check(t, docs, settings(t, "kvpilot.yaml", readFile(t, "kubernetes/base/kvpilot.yaml")))
}

func TestTheExampleReplicasFitTheSettings(t *testing.T) {
	c := settings(t, "kvpilot.yaml", readFile(t, "kubernetes/base/kvpilot.yaml"))
	docs := documents(t, "vllm.yaml", readFile(t, "kubernetes/with-vllm/vllm.yaml"))
	followed := c.Registry.Kubernetes[0]
	service := byKind(t, docs, "Service")
	if name := at(t, service, "metadata", "name"); name != followed.Service {
		t.Errorf("the Service is %v, kvpilot follows %s", name, followed.Service)
	}
	if port := at(t, service, "spec", "ports", 0, "name"); port != followed.Port {
		t.Errorf("its port is %v, kvpilot asks for %s", port, followed.Port)
	}
	args := fmt.Sprint(at(t, byKind(t, docs, "StatefulSet"), "spec", "template", "spec", "containers", 0, "args"))
	for _, address := range []string{followed.Template.Events.Endpoint, followed.Template.Events.Replay} {
		if want := strings.Replace(address, "{host}", "*", 1); !strings.Contains(args, want) {
			t.Errorf("kvpilot dials %s, and no engine publishes on %s: %s", address, want, args)
		}
	}
}

func TestTheChartFitsTheProgram(t *testing.T) {
	values := documents(t, "values.yaml", readFile(t, "helm/kvpilot/values.yaml"))[0]
	docs := render(t, values)
	text := at(t, byKind(t, docs, "ConfigMap"), "data", "kvpilot.yaml").(string)
	c := settings(t, "the chart's kvpilot.yaml", []byte(text))
	check(t, docs, c)
	if len(c.Registry.Kubernetes) != 1 || c.Listen.DrainTimeout != 5*time.Minute {
		t.Errorf("the chart's settings are %+v", c.Listen)
	}

	values["replicas"] = 5
	values["watchNamespaces"] = []any{"models"}
	values["env"] = []any{object{"name": "KVPILOT_TELEMETRY_LOG_LEVEL", "value": "debug"}}
	values["volumes"] = []any{object{"name": "keys", "secret": object{"secretName": "keys"}}}
	values["volumeMounts"] = []any{object{"name": "keys", "mountPath": "/keys"}}
	values["nodeSelector"] = object{"pool": "cpu"}
	docs = render(t, values)
	roles := 0
	for _, d := range docs {
		if d["kind"] == "Role" {
			roles++
		}
	}
	pod := at(t, byKind(t, docs, "Deployment"), "spec", "template", "spec")
	if roles != 2 || at(t, pod, "nodeSelector", "pool") != "cpu" || at(t, last(t, pod, "containers", 0, "env"), "value") != "debug" ||
		at(t, last(t, pod, "volumes"), "name") != "keys" || at(t, last(t, pod, "containers", 0, "volumeMounts"), "mountPath") != "/keys" {
		t.Errorf("values did not arrive: %d roles, %v", roles, pod)
	}
}

// check compares the objects with the settings that they carry.
func check(t *testing.T, docs []object, c config.Config) {
	t.Helper()
	for _, d := range docs {
		if d["apiVersion"] == nil || d["kind"] == nil || at(t, d, "metadata", "name") == "" {
			t.Errorf("incomplete object %v", d)
		}
	}
	pod := at(t, byKind(t, docs, "Deployment"), "spec", "template")
	ports := map[string]string{}
	for _, p := range at(t, pod, "spec", "containers", 0, "ports").([]any) {
		ports[p.(object)["name"].(string)] = fmt.Sprint(":", p.(object)["containerPort"])
	}
	if want := map[string]string{
		"http": c.Listen.HTTP, "grpc": c.Listen.GRPC, "admin": c.Listen.Admin, "gossip": c.Fleet.Listen, "gossip-udp": c.Fleet.Listen, "peer": c.Fleet.RPCAddress(),
	}; !maps.Equal(ports, want) {
		t.Errorf("ports %v, the program listens at %v", ports, want)
	}
	grace := time.Duration(toInt(at(t, pod, "spec", "terminationGracePeriodSeconds"))) * time.Second
	if need := c.Listen.DrainDelay + c.Listen.DrainTimeout; grace <= need {
		t.Errorf("killed after %s, draining takes up to %s", grace, need)
	}
	labels := at(t, pod, "metadata", "labels").(object)
	selectors := []any{at(t, byKind(t, docs, "Deployment"), "spec", "selector", "matchLabels")}
	for _, d := range docs {
		if d["kind"] == "Service" {
			selectors = append(selectors, at(t, d, "spec", "selector"))
		}
	}
	for _, selector := range selectors {
		for key, value := range selector.(object) {
			if labels[key] != value {
				t.Errorf("the selector wants %s=%v, pods have %v", key, value, labels[key])
			}
		}
	}
	rules := at(t, byKind(t, docs, "Role"), "rules")
	if fmt.Sprint(rules) != "[map[apiGroups:[discovery.k8s.io] resources:[endpointslices] verbs:[list watch]] map[apiGroups:[] resources:[pods] verbs:[list watch]] map[apiGroups:[inference.networking.k8s.io] resources:[inferencepools] verbs:[list watch]] map[apiGroups:[llm-d.ai inference.networking.x-k8s.io] resources:[inferenceobjectives inferencemodelrewrites] verbs:[list watch]]]" {
		t.Errorf("rights %v, want to list and watch EndpointSlices and Pods", rules)
	}
	account := at(t, pod, "spec", "serviceAccountName")
	if name := at(t, byKind(t, docs, "ServiceAccount"), "metadata", "name"); name != account {
		t.Errorf("the pod runs as %v, the account is %v", account, name)
	}
}

func toInt(v any) int {
	var n int
	_, _ = fmt.Sscan(fmt.Sprint(v), &n) // 0 fails the comparison
	return n
}

func deepCopy(v any) any {
	switch v := v.(type) {
	case object:
		all := object{}
		for key, value := range v {
			all[key] = deepCopy(value)
		}
		return all
	case []any:
		all := make([]any, len(v))
		for i := range v {
			all[i] = deepCopy(v[i])
		}
		return all
	}
	return v
}

// merge adds what others have and to has not.
func merge(to object, others ...object) object {
	for _, other := range others {
		for key, value := range other {
			inner, both := to[key].(object)
			if theirs, ok := value.(object); both && ok {
				merge(inner, theirs)
			} else if _, has := to[key]; !has {
				to[key] = value
			}
		}
	}
	return to
}

// chartFiles are the chart's own files, as templates see them.
type chartFiles struct{ t *testing.T }

// Get returns a file's text.
func (f chartFiles) Get(name string) string {
	return string(readFile(f.t, filepath.Join("helm/kvpilot", name)))
}

// Glob returns the files whose names match, by name.
func (f chartFiles) Glob(pattern string) map[string]string {
	found := map[string]string{}
	for _, name := range glob(f.t, filepath.Join("helm/kvpilot", pattern)) {
		short := strings.TrimPrefix(name, "helm/kvpilot/")
		found[short] = f.Get(short)
	}
	return found
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		t.Fatalf("nothing matches %s: %v", pattern, err)
	}
	return found
}

// apiVersions are those of a cluster without extensions.
type apiVersions struct{}

// Has reports whether the cluster has an API.
func (apiVersions) Has(string) bool { return false }

// render does what helm does for this chart, with the few functions that it uses.
func render(t *testing.T, values object) []object {
	t.Helper()
	if image := values["image"].(object); image["repository"] == "" {
		image["repository"] = "registry.example.com/kvpilot"
	}
	chart := documents(t, "Chart.yaml", readFile(t, "helm/kvpilot/Chart.yaml"))[0]
	data := object{
		"Values": values, "Release": object{"Name": "prod", "Namespace": "serving", "Service": "Helm"},
		"Files": chartFiles{t}, "Capabilities": object{"APIVersions": apiVersions{}},
		"Chart": object{"Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"]},
	}
	set := template.New("chart").Option("missingkey=error")
	set.Funcs(template.FuncMap{
		"include": func(name string, data any) (string, error) {
			var out strings.Builder
			err := set.ExecuteTemplate(&out, name, data)
			return out.String(), err
		},
		"toYaml": func(v any) (string, error) {
			text, err := yaml.Marshal(v)
			return strings.TrimSuffix(string(text), "\n"), err
		},
		"fromYaml": func(text string) (object, error) {
			v := object{}
			err := yaml.Unmarshal([]byte(text), &v)
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return v, err
		},
		"nindent": func(n int, text string) string {
			return "\n" + strings.Repeat(" ", n) + strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", n))
		},
		"default": func(otherwise, v any) any {
			if r := reflect.ValueOf(v); !r.IsValid() || r.IsZero() || r.Kind() == reflect.Map && r.Len() == 0 {
				return otherwise
			}
			return v
		},
		"deepCopy": deepCopy,
		"dict": func(pairs ...any) object {
			d := object{}
			for i := 0; i+1 < len(pairs); i += 2 {
				d[pairs[i].(string)] = pairs[i+1]
			}
			return d
		},
		"get": func(d object, key string) any {
			if v, has := d[key]; has {
				return v
			}
			return ""
		},
		"hasKey": func(d object, key string) bool { _, has := d[key]; return has },
		"set":    func(d object, key string, v any) object { d[key] = v; return d },
		"ternary": func(yes, no any, condition bool) any {
			if condition {
				return yes
			}
			return no
		},
		"unset":  func(d object, key string) object { delete(d, key); return d },
		"has":    func(v any, list []any) bool { return slices.Contains(list, v) },
		"merge":  merge,
		"append": func(list []any, one any) []any { return append(slices.Clone(list), one) },
		"toJson": func(v any) (string, error) { text, err := json.Marshal(v); return string(text), err },
		"fromJson": func(text string) (object, error) {
			v := object{}
			return v, json.Unmarshal([]byte(text), &v)
		},
		"toString":   func(v any) string { return fmt.Sprint(v) },
		"kindIs":     func(kind string, v any) bool { return reflect.ValueOf(v).Kind().String() == kind },
		"tpl":        func(text string, _ any) string { return text },
		"trim":       strings.TrimSpace,
		"regexMatch": func(pattern, s string) bool { return regexp.MustCompile(pattern).MatchString(s) },
		"sub":        func(a, b int) int { return a - b },
		// There is no cluster, and one key is as good as another.
		"lookup":       func(...string) object { return object{} },
		"randAlphaNum": func(n int) string { return strings.Repeat("k", n) },
		"b64enc":       func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
		"required": func(text string, v any) (any, error) {
			if v == nil || v == "" {
				return v, errors.New(text)
			}
			return v, nil
		},
		"fail":       func(text string) (string, error) { return "", errors.New(text) },
		"quote":      func(v any) string { return fmt.Sprintf("%q", fmt.Sprint(v)) },
		"trunc":      func(n int, s string) string { return s[:min(n, len(s))] },
		"trimSuffix": func(suffix, s string) string { return strings.TrimSuffix(s, suffix) },
		"hasPrefix":  func(prefix, s string) bool { return strings.HasPrefix(s, prefix) },
		"replace":    func(old, with, s string) string { return strings.ReplaceAll(s, old, with) },
		"base":       path.Base,
		"contains":   func(part, s string) bool { return strings.Contains(s, part) },
		"sha256sum":  func(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) },
		"list":       func(v ...any) []any { return v },
		"concat":     func(lists ...[]any) []any { return slices.Concat(lists...) },
		"int":        toInt,
		"add": func(numbers ...int) (sum int) {
			for _, n := range numbers {
				sum += n
			}
			return sum
		},
	})
	files := slices.Concat(glob(t, "helm/kvpilot/templates/*.*"), glob(t, "helm/kvpilot/templates/tests/*"))
	var docs []object
	for _, name := range files {
		if _, err := set.New(name).Parse(string(readFile(t, name))); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range files {
		var out bytes.Buffer
		if err := set.ExecuteTemplate(&out, name, data); err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(name) == ".yaml" {
			docs = append(docs, documents(t, name, out.Bytes())...)
		}
	}
	return docs
}

// The scrape settings must be those of old Prometheus versions too: OpenMetrics, which exemplars need, is what all of them
// ask for by themselves.
func TestPrometheusTakesItsFiles(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool is installed (Debian: apt install prometheus)")
	}
	// The container's paths become those of this folder.
	dir := t.TempDir()
	for _, name := range []string{"prometheus.yml", "rules.yml", "alerts.yml"} {
		text := bytes.ReplaceAll(readFile(t, filepath.Join("prometheus", name)), []byte("/etc/prometheus/"), []byte(dir+"/"))
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if said, err := exec.CommandContext(t.Context(), promtool, "check", "config", filepath.Join(dir, "prometheus.yml")).CombinedOutput(); err != nil {
		t.Errorf("promtool check config: %v\n%s", err, said)
	}
}
