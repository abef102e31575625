package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/kvpilot/kvpilot/server/config"
)

// manifests are objects by "kind name".
func manifests(t *testing.T, text []byte) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var object map[string]any
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if len(object) == 0 {
			continue
		}
		name := fmt.Sprint(object["kind"], " ", object["metadata"].(map[string]any)["name"])
		if all[name] != nil {
			t.Errorf("%s is there twice", name)
		}
		all[name] = object
	}
}

func initKubernetes(t *testing.T, args ...string) map[string]map[string]any {
	t.Helper()
	var text bytes.Buffer
	if err := run(t.Context(), append([]string{"init", "--kubernetes", "--out", "-"}, args...), nil, &text, io.Discard); err != nil {
		t.Fatal(err)
	}
	return manifests(t, text.Bytes())
}

// The folder deploy/kubernetes is what people read and patch: what init writes is the same.
func TestTheManifestsAreThoseOfTheExample(t *testing.T) {
	const image = "registry.example.com/kvpilot:v1"
	got := initKubernetes(t, "--image", image, "--model", "Qwen/Qwen3-0.6B")
	for _, name := range []string{"base/rbac", "base/service", "base/deployment", "with-vllm/vllm"} {
		text, err := os.ReadFile("../../deploy/kubernetes/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.Replace(text, []byte("image: kvpilot\n"), []byte("image: "+image+"\n"), 1)
		for object, want := range manifests(t, text) {
			if !reflect.DeepEqual(got[object], want) {
				t.Errorf("%s is\n%v\nwant\n%v", object, got[object], want)
			}
			delete(got, object)
		}
	}
	config, secret := got["ConfigMap kvpilot"], got["Secret kvpilot-fleet"]
	if len(got) != 2 || config == nil || secret == nil {
		t.Fatalf("further objects: %v", got)
	}
	if key := fmt.Sprint(secret["stringData"].(map[string]any)["key"]); len(key) < 26 {
		t.Errorf("the fleet's key is %q", key)
	}
	if again := initKubernetes(t, "--image", image, "--model", "m")["Secret kvpilot-fleet"]; reflect.DeepEqual(again, secret) {
		t.Error("two fleets have the same key")
	}
}

func TestTheManifestsHaveWhatWasAskedFor(t *testing.T) {
	got := initKubernetes(t, "--image", "r.example.com/k:v2", "--model", "org/a model: x", "--engines", "5", "--gpus", "4", "--vllm-image", "r.example.com/vllm:x",
		"--vllm-arg", "--max-model-len=32768", "--vllm-arg=--chat-template={{ x }}", "--cache-size", "100Gi", "--hf-token-secret", "hugging-face", "--routers", "1")
	text := fmt.Sprint(got["StatefulSet vllm"])
	for _, want := range []string{
		"--model=org/a model: x ", "replicas:5", "nvidia.com/gpu:4", "--tensor-parallel-size=4", "image:r.example.com/vllm:x", "--max-model-len=32768 --chat-template={{ x }}]",
		"storage:100Gi", "mountPath:/root/.cache ", "name:hugging-face", "--enable-prompt-tokens-details",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
	_, events, _ := strings.Cut(text, "--kv-events-config=")
	var published struct {
		Enabled  bool   `json:"enable_kv_cache_events"`
		Endpoint string `json:"endpoint"`
	}
	if err := json.NewDecoder(strings.NewReader(events)).Decode(&published); err != nil || !published.Enabled || published.Endpoint != "tcp://*:5557" {
		t.Errorf("vLLM reads %+v, %v", published, err)
	}
	if router := fmt.Sprint(got["Deployment kvpilot"]); !strings.Contains(router, "replicas:1") || !strings.Contains(router, "image:r.example.com/k:v2") {
		t.Errorf("the routers are %s", router)
	}
	if text := fmt.Sprint(initKubernetes(t, "--image", "k", "--model", "m", "--gpus", "0")["StatefulSet vllm"]); strings.Contains(text, "gpu") || strings.Contains(text, "tensor-parallel") {
		t.Errorf("without GPUs there are %s", text)
	}
}

// Model and compiled kernels outlive a restart of the container, with and without a claim.
func TestEnginesKeepTheirCache(t *testing.T) {
	for _, size := range []string{"", "100Gi"} {
		spec := initKubernetes(t, "--image", "k", "--model", "m", "--cache-size", size)["StatefulSet vllm"]["spec"].(map[string]any)
		text, claims := fmt.Sprint(spec["template"]), fmt.Sprint(spec["volumeClaimTemplates"])
		if !strings.Contains(text, "map[mountPath:/root/.cache name:cache]") {
			t.Errorf("size %q: nothing is mounted at vLLM's cache: %s", size, text)
		}
		if folder, claim := strings.Contains(text, "map[emptyDir:map[] name:cache]"), strings.Contains(claims, "name:cache"); folder == claim || claim != (size != "") {
			t.Errorf("size %q: the cache is a folder of the node %v, and a claim %v", size, folder, claim)
		}
	}
}

func TestExistingEnginesAreFollowed(t *testing.T) {
	got := initKubernetes(t, "--image", "k", "--service", "my-engines", "--service-port", "8000")
	for name := range got {
		if strings.HasSuffix(name, " vllm") {
			t.Errorf("there is a %s", name)
		}
	}
	c := config.Default()
	text := fmt.Sprint(got["ConfigMap kvpilot"]["data"].(map[string]any)["kvpilot.yaml"])
	if err := config.Parse([]byte(text), &c); err != nil || len(c.Registry.Kubernetes) != 1 || c.Registry.Kubernetes[0].Service != "my-engines" || c.Registry.Kubernetes[0].Port != "8000" {
		t.Errorf("it follows %+v, %v", c.Registry.Kubernetes, err)
	}
}

func TestTheNextStepsAreNamedAndNothingIsOverwritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "k.yaml")
	args := []string{"init", "--kubernetes", "--image", "k", "--model", "m", "--out", file}
	var out bytes.Buffer
	if err := run(t.Context(), args, nil, &out, io.Discard); err != nil || !strings.Contains(out.String(), "kubectl apply -f "+file) || !strings.Contains(out.String(), "statefulset/vllm") {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a file with a key has %v, %v", info.Mode(), err)
	}
	if err := run(t.Context(), args, nil, io.Discard, io.Discard); err == nil {
		t.Error("a second init succeeded")
	}
}

func TestWrongAnswersForKubernetesAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "k.yaml")
	for want, args := range map[string][]string{
		"--image: name an image":                     {"--kubernetes", "--model", "m"},
		"name a model with --model":                  {"--kubernetes", "--image", "k"},
		"use one of them":                            {"--kubernetes", "--image", "k", "--model", "m", "--service", "s"},
		"--cache-size must have the form":            {"--kubernetes", "--image", "k", "--model", "m", "--cache-size", "lots"},
		"--engines must be at least 1":               {"--kubernetes", "--image", "k", "--model", "m", "--engines", "0"},
		"--routers must be at least 1":               {"--kubernetes", "--image", "k", "--model", "m", "--routers", "-1"},
		"--gpus must not be negative":                {"--kubernetes", "--image", "k", "--model", "m", "--gpus", "-1"},
		"--service must be the name":                 {"--kubernetes", "--image", "k", "--service", "My Service"},
		"--hf-token-secret must be the name":         {"--kubernetes", "--image", "k", "--model", "m", "--hf-token-secret", "a b"},
		"control characters":                         {"--kubernetes", "--image", "k", "--model", "m\nname: x"},
		"--replica is not for --kubernetes":          {"--kubernetes", "--image", "k", "--model", "m", "--replica", "http://h"},
		"--engines needs --kubernetes":               {"--replica", "http://10.0.0.7:8000", "--engines", "3"},
		"answer on a terminal":                       {},
		`kvpilot init takes no arguments, not "now"`: {"--kubernetes", "now"},
	} {
		err := run(t.Context(), append([]string{"init", "--out", file}, args...), nil, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want an error with %q", args, err, want)
		}
		if _, err := os.Stat(file); err == nil {
			t.Fatalf("%v: it left a file", args)
		}
	}
}

func TestInitAsksAboutTheCluster(t *testing.T) {
	c := defaultCluster()
	answers := "r.example.com/kvpilot:v1\n\nQwen/Qwen3-8B\n4\n\n100Gi\nhf\n1\n"
	var out bytes.Buffer
	if err := ask(&c, clusterQuestions, strings.NewReader(answers), &out); err != nil {
		t.Fatal(err)
	}
	want := defaultCluster()
	want.Image, want.Model, want.Engines, want.CacheSize, want.Token, want.Routers = "r.example.com/kvpilot:v1", "Qwen/Qwen3-8B", 4, "100Gi", "hf", 1
	if !reflect.DeepEqual(c, want) {
		t.Errorf("the answers became %+v, want %+v", c, want)
	}
	if _, err := c.manifests("a-key-of-the-fleet-for-the-test"); err != nil {
		t.Error(err)
	}
	if err := ask(&c, clusterQuestions, strings.NewReader("k\n\nm\nmany\n"), io.Discard); err == nil || !strings.Contains(err.Error(), `"many" is not a number`) {
		t.Errorf("got %v", err)
	}
}
