package main

import (
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"text/template"

	"github.com/spf13/pflag"

	"github.com/kvpilot/kvpilot/deploy"
	"github.com/kvpilot/kvpilot/server/config"
)

// cluster has the answers to kvpilot init --kubernetes.
type cluster struct {
	Image   string // of kvpilot
	Routers int

	Service string // of engines that exist; empty: engines are written
	Port    string

	Model     string
	Engines   int // vLLM pods
	GPUs      int // of each
	Engine    string
	Arguments []string // further ones of vLLM
	CacheSize string   // claim for the model's files and compiled kernels; empty: a folder of the node, which ends with the pod
	Token     string   // Secret with the key "token" for Hugging Face; empty: none
}

func defaultCluster() cluster {
	return cluster{Routers: 3, Port: "http", Engines: 2, GPUs: 1, Engine: "vllm/vllm-openai:v0.32.0"}
}

// clusterQuestions are asked where neither a model nor a Service was given and a terminal answers.
var clusterQuestions = []initQuestion[cluster]{
	{"Image of kvpilot that the cluster can pull (such as REGISTRY/kvpilot:v0.1.0)", text(func(c *cluster) *string { return &c.Image })},
	{"Service of vLLM pods that exist (empty: vLLM is written too)", text(func(c *cluster) *string { return &c.Service })},
	{"Model for new vLLM pods (such as Qwen/Qwen3-8B; empty: none)", text(func(c *cluster) *string { return &c.Model })},
	{"vLLM pods (2)", number(func(c *cluster) *int { return &c.Engines })},
	{"GPUs of each (1)", number(func(c *cluster) *int { return &c.GPUs })},
	{"Size of a volume for the model's files of each pod (such as 100Gi; empty: a folder of the node, and each new pod downloads the model)", text(func(c *cluster) *string { return &c.CacheSize })},
	{`Secret with a Hugging Face token under the key "token" (empty: none)`, text(func(c *cluster) *string { return &c.Token })},
	{"kvpilot pods (3)", number(func(c *cluster) *int { return &c.Routers })},
}

func text[T any](field func(*T) *string) func(*T, string) error {
	return func(d *T, answer string) error { *field(d) = answer; return nil }
}

func number[T any](field func(*T) *int) func(*T, string) error {
	return func(d *T, answer string) (err error) {
		if *field(d), err = strconv.Atoi(answer); err != nil {
			return fmt.Errorf("%q is not a number", answer)
		}
		return nil
	}
}

// flags returns the flags of --kubernetes, which set c.
func (c *cluster) flags() *pflag.FlagSet {
	flags := pflag.NewFlagSet("kubernetes", pflag.ContinueOnError)
	flags.StringVar(&c.Image, "image", "", "with --kubernetes: image of kvpilot that the cluster can pull")
	flags.StringVar(&c.Model, "model", "", "with --kubernetes: model that new vLLM pods serve, for example Qwen/Qwen3-8B")
	flags.IntVar(&c.Engines, "engines", c.Engines, "with --kubernetes: vLLM pods")
	flags.IntVar(&c.GPUs, "gpus", c.GPUs, "with --kubernetes: GPUs of each vLLM pod, which share the model; 0 for images without")
	flags.StringVar(&c.Engine, "vllm-image", c.Engine, "with --kubernetes: image of vLLM")
	flags.StringArrayVar(&c.Arguments, "vllm-arg", nil, "with --kubernetes: further argument of vLLM, for example --max-model-len=32768; may be repeated")
	flags.StringVar(&c.CacheSize, "cache-size", "", "with --kubernetes: size of a volume for the model's files of each vLLM pod, for example 100Gi (default a folder of the node, which ends with the pod)")
	flags.StringVar(&c.Token, "hf-token-secret", "", "with --kubernetes: Secret with a Hugging Face token under the key token")
	flags.IntVar(&c.Routers, "routers", c.Routers, "with --kubernetes: kvpilot pods")
	flags.StringVar(&c.Service, "service", "", "with --kubernetes: Service of vLLM pods that exist; none are written then")
	flags.StringVar(&c.Port, "service-port", c.Port, "with --kubernetes: name or number of that Service's HTTP port")
	return flags
}

var (
	quantity = regexp.MustCompile(`^[1-9][0-9]*(Mi|Gi|Ti)$`)
	objName  = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
)

// validate reports all that is wrong.
func (c *cluster) validate() error {
	var errs []error
	refuse := func(wrong bool, format string, values ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, values...))
		}
	}
	refuse(c.Image == "", "--image: name an image of kvpilot that the cluster can pull; docs/install.md says how to make one")
	refuse(c.Model == "" && c.Service == "", "name a model with --model, or a Service of vLLM pods that exist with --service, or answer on a terminal")
	refuse(c.Model != "" && c.Service != "", "--model is for new vLLM pods, --service for those that exist: use one of them")
	refuse(c.Service != "" && !objName.MatchString(c.Service), "--service must be the name of a Service, is %q", c.Service)
	refuse(c.Token != "" && !objName.MatchString(c.Token), "--hf-token-secret must be the name of a Secret, is %q", c.Token)
	refuse(c.CacheSize != "" && !quantity.MatchString(c.CacheSize), "--cache-size must have the form 100Gi, is %q", c.CacheSize)
	refuse(c.Engines < 1, "--engines must be at least 1, is %d", c.Engines)
	refuse(c.Routers < 1, "--routers must be at least 1, is %d", c.Routers)
	refuse(c.GPUs < 0, "--gpus must not be negative, is %d", c.GPUs)
	for _, value := range append([]string{c.Image, c.Model, c.Engine, c.Port}, c.Arguments...) {
		refuse(strings.ContainsFunc(value, func(r rune) bool { return r < ' ' }) || strings.TrimSpace(value) != value, "%q has spaces around it or control characters", value)
	}
	return errors.Join(errs...)
}

// manifests are all objects as one text. key is the fleet's.
func (c *cluster) manifests(key string) (string, error) {
	if err := c.validate(); err != nil {
		return "", err
	}
	files := map[string]string{}
	for _, name := range []string{"rbac", "service", "deployment", "kvpilot"} {
		content, err := fs.ReadFile(deploy.Base, "kubernetes/base/"+name+".yaml")
		if err != nil {
			return "", err
		}
		files[name] = string(content)
	}
	var err error
	for _, edit := range []struct{ file, old, now string }{
		{"deployment", "          image: kvpilot\n", "          image: " + strconv.Quote(c.Image) + "\n"},
		{"deployment", "  replicas: 3\n", "  replicas: " + strconv.Itoa(c.Routers) + "\n"},
		{"kvpilot", "    - service: vllm\n", "    - service: " + strconv.Quote(c.service()) + "\n"},
		{"kvpilot", "      port: http\n", "      port: " + strconv.Quote(c.Port) + "\n"},
	} {
		if files[edit.file], err = replaceOnce(files[edit.file], edit.old, edit.now); err != nil {
			return "", fmt.Errorf("%s: %w", edit.file, err)
		}
	}
	mounted, err := replaceOnce(files["kvpilot"], "  key_file: /etc/kvpilot-fleet/key\n", "  key: "+key+"\n") // the file is in the pod alone
	if err != nil {
		return "", err
	}
	settings := config.Default()
	if err := errors.Join(config.Parse([]byte(mounted), &settings), settings.Validate()); err != nil {
		return "", err
	}
	var out strings.Builder
	err = clusterText.Execute(&out, map[string]any{
		"Cluster": c, "Key": key, "Settings": yamlBlock(files["kvpilot"]), "RBAC": files["rbac"], "Services": files["service"], "Deployment": files["deployment"],
	})
	return out.String(), err
}

// service is the Service of the engines.
func (c *cluster) service() string {
	if c.Service != "" {
		return c.Service
	}
	return "vllm"
}

// replaceOnce changes the one place where old is. The texts are the program's own: anything else is a fault of this build.
func replaceOnce(text, old, now string) (string, error) {
	if n := strings.Count(text, old); n != 1 {
		return "", fmt.Errorf("%q is %d times in the manifest", old, n)
	}
	return strings.Replace(text, old, now, 1), nil
}

// yamlBlock makes a text the content of a block of a ConfigMap.
func yamlBlock(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ")
}

// write writes the manifests, with a new key for the fleet.
func (c *cluster) write(name string, out io.Writer) error {
	text, err := c.manifests(rand.Text())
	if err != nil {
		return err
	}
	if written, err := writeNew(name, text, out); err != nil || !written {
		return err
	}
	wait := "deployment/kvpilot"
	if c.Service == "" {
		wait = "statefulset/vllm " + wait
	}
	_, err = fmt.Fprintf(out, `%s is written. It holds the key of the routers' fleet: treat it as a secret. Now run, with -n NAMESPACE where it is not the default one:
  kubectl apply -f %[1]s
  kubectl rollout status --timeout=30m %[2]s
  kubectl port-forward service/kvpilot 8080 &
  kubectl port-forward service/kvpilot-admin 9091 &
  curl -s http://127.0.0.1:8080/v1/models
The console is at http://127.0.0.1:9091/console/
`, name, wait)
	return err
}

//go:embed initkube.yaml.tmpl
var clusterTemplate string

var clusterText = template.Must(template.New("manifests").Parse(clusterTemplate))
