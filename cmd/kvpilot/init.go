package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/template"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvpilot/kvpilot/server/config"
)

// draft has the answers to kvpilot init.
type draft struct {
	Out            string
	Replicas       []string
	Events, Replay string
	Public         bool // listen on all addresses
	KeysFile       string
	Cert, Key      string
	Routers        []string // host:port of the fleet's gossip
	Traces         string
}

// initQuestion asks for one field of a T.
type initQuestion[T any] struct {
	text string
	set  func(to *T, answer string) error
}

// initQuestions are asked where no replica was given and a terminal answers.
var initQuestions = []initQuestion[draft]{
	{"Replicas (base URLs, such as http://10.0.0.7:8000, separated by spaces)", words(func(d *draft) *[]string { return &d.Replicas })},
	{"KV events of the replicas (such as tcp://{host}:5557; empty: none)", text(func(d *draft) *string { return &d.Events })},
	{"Replays of these events (such as tcp://{host}:5657; empty: none)", text(func(d *draft) *string { return &d.Replay })},
	{"Listen on all addresses, not on this host alone? (y/N)", func(d *draft, a string) error { d.Public = strings.HasPrefix(strings.ToLower(a), "y"); return nil }},
	{"File with API keys (kvpilot key new makes lines for it; empty: callers need no key)", text(func(d *draft) *string { return &d.KeysFile })},
	{"File with the TLS certificate (empty: no TLS)", text(func(d *draft) *string { return &d.Cert })},
	{"File with its private key", text(func(d *draft) *string { return &d.Key })},
	{"Other routers of the fleet (host:port of their gossip, separated by spaces; empty: this one is alone)", words(func(d *draft) *[]string { return &d.Routers })},
	{"OTLP endpoint for traces (such as jaeger:4317; empty: none)", text(func(d *draft) *string { return &d.Traces })},
}

func words[T any](field func(*T) *[]string) func(*T, string) error {
	return func(d *T, answer string) error { *field(d) = strings.Fields(answer); return nil }
}

// newInitCommand writes a first settings file.
func newInitCommand(out io.Writer) *cobra.Command {
	var d draft
	c, kubernetes := defaultCluster(), false
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write a first settings file, or manifests for Kubernetes",
		Long: "Write a settings file with comments, from flags or, on a terminal and without --replica, from answers.\n" +
			"With --kubernetes, write manifests of routers and vLLM, from flags or, on a terminal and without --model and --service, from answers.\n\n" +
			"An existing file is not overwritten. What it writes is valid: kvpilot serve --config FILE and kubectl apply -f FILE take it as it is.",
		Example: "  kvpilot init\n  kvpilot init --replica http://10.0.0.7:8000 --replica http://10.0.0.8:8000 --events 'tcp://{host}:5557' --replay 'tcp://{host}:5657'\n  kvpilot init --replica http://10.0.0.7:8000 --public --keys-file /etc/kvpilot/keys --out -\n" +
			"  kvpilot init --kubernetes\n  kvpilot init --kubernetes --image REGISTRY/kvpilot:v0.1.0 --model Qwen/Qwen3-8B --engines 4\n  kvpilot init --kubernetes --image REGISTRY/kvpilot:v0.1.0 --service vllm",
		Args: cobra.NoArgs,
	}
	local, inCluster := d.flags(), c.flags()
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		width, _ := terminal(out)
		if kubernetes {
			if err := noneSet(local, "is not for --kubernetes"); err != nil {
				return err
			}
			if c.Model == "" && c.Service == "" && width > 0 {
				if err := ask(&c, clusterQuestions, cmd.InOrStdin(), out); err != nil {
					return err
				}
			}
			return c.write(cmp.Or(d.Out, "kvpilot-kubernetes.yaml"), out)
		}
		if err := noneSet(inCluster, "needs --kubernetes"); err != nil {
			return err
		}
		if len(d.Replicas) == 0 && width > 0 {
			if err := ask(&d, initQuestions, cmd.InOrStdin(), out); err != nil {
				return err
			}
		}
		d.Out = cmp.Or(d.Out, "kvpilot.yaml")
		return d.write(out)
	}
	flags := cmd.Flags()
	flags.BoolVar(&kubernetes, "kubernetes", false, "write manifests for Kubernetes")
	flags.StringVar(&d.Out, "out", "", "file to write; - for the terminal (default kvpilot.yaml or kvpilot-kubernetes.yaml)")
	flags.AddFlagSet(local)
	flags.AddFlagSet(inCluster)
	return cmd
}

// noneSet returns an error that names the first flag of the set that was given.
func noneSet(flags *pflag.FlagSet, reason string) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed && err == nil {
			err = fmt.Errorf("--%s %s", f.Name, reason)
		}
	})
	return err
}

// flags returns the flags of a settings file, which set d.
func (d *draft) flags() *pflag.FlagSet {
	flags := pflag.NewFlagSet("settings", pflag.ContinueOnError)
	flags.StringArrayVar(&d.Replicas, "replica", nil, "base URL of a replica; may be repeated")
	flags.StringVar(&d.Events, "events", "", "where replicas publish KV events, for example tcp://{host}:5557")
	flags.StringVar(&d.Replay, "replay", "", "where replicas replay KV events, for example tcp://{host}:5657")
	flags.BoolVar(&d.Public, "public", false, "listen on all addresses, not on this host alone")
	flags.StringVar(&d.KeysFile, "keys-file", "", "file with API keys")
	flags.StringVar(&d.Cert, "tls-cert", "", "file with the TLS certificate of REST and gRPC")
	flags.StringVar(&d.Key, "tls-key", "", "file with its private key")
	flags.StringArrayVar(&d.Routers, "router", nil, "host:port of the gossip of a router of the fleet; may be repeated")
	flags.StringVar(&d.Traces, "traces", "", "where spans go over OTLP, for example jaeger:4317")
	return flags
}

// ask asks the questions in their order. An empty answer keeps the present value.
func ask[T any](to *T, questions []initQuestion[T], in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	for _, q := range questions {
		fmt.Fprintf(out, "%s: ", q.text)
		if !lines.Scan() {
			return errors.Join(errors.New("the answers ended"), lines.Err())
		}
		if answer := strings.TrimSpace(lines.Text()); answer != "" {
			if err := q.set(to, answer); err != nil {
				return fmt.Errorf("%s: %w", q.text, err)
			}
		}
	}
	return nil
}

// write checks the settings and writes them.
func (d *draft) write(out io.Writer) error {
	if len(d.Replicas) == 0 {
		return errors.New("no replicas: name them with --replica, or answer on a terminal")
	}
	var text strings.Builder
	if err := draftText.Execute(&text, d); err != nil {
		return err
	}
	c := config.Default()
	if err := errors.Join(config.Parse([]byte(text.String()), &c), c.Validate()); err != nil {
		return err
	}
	if written, err := writeNew(d.Out, text.String(), out); err != nil || !written {
		return err
	}
	_, err := fmt.Fprintf(out, "%s is written; now run: kvpilot serve --config %[1]s\n", d.Out)
	return err
}

// writeNew writes a file that must not exist, and reports that it did; "-" is out, and no file.
func writeNew(name, text string, out io.Writer) (written bool, err error) {
	if name == "-" {
		_, err := io.WriteString(out, text)
		return false, err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false, err
	}
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Close())
	return err == nil, err
}

// draftText is the file. %q of Go is a valid quoted scalar of YAML for any line of text.
var draftText = template.Must(template.New("settings").Parse(`# Settings of kvpilot, by kvpilot init. docs/config.md lists all of them, with their defaults; kvpilot serve --print-config
# prints those in force. The file is read again when it changes.

listen:{{if .Public}}
  # Reachable from other hosts. Without keys, all who reach these may use the replicas{{if .KeysFile}}; see api.keys_file{{end}}.
  http: ":8080"
  grpc: ":9090"
  # Health, metrics and the console: keep it inside.
  admin: ":9091"{{else}}
  # This host alone. ":8080" listens on all addresses.
  http: "127.0.0.1:8080"
  grpc: "127.0.0.1:9090"
  # Health, metrics and the console.
  admin: "127.0.0.1:9091"{{end}}{{if or .Cert .Key}}
  tls_cert: {{printf "%q" .Cert}}
  tls_key: {{printf "%q" .Key}}{{end}}

registry:
  # vLLM servers, with --enable-prefix-caching. Files, DNS and Kubernetes: docs/replicas.md.
  replicas:{{range .Replicas}}
    - url: {{printf "%q" .}}{{end}}{{if or .Events .Replay}}
  # What each replica was started with: --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq",
  # "endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"}'. {host} is the host of its url.
  events:
    endpoint: {{printf "%q" .Events}}
    replay: {{printf "%q" .Replay}}{{else}}
  # Without KV events the router assumes that replicas hold what it sent them. With them it knows: start vLLM with
  # --kv-events-config and name the sockets here.
  # events: {endpoint: "tcp://{host}:5557", replay: "tcp://{host}:5657"}{{end}}

api:{{if .KeysFile}}
  # One line per key, from kvpilot key new. It is read again when it changes.
  keys_file: {{printf "%q" .KeysFile}}{{else}}
  # No key is asked for. kvpilot key new --tenant NAME makes one and its line for this file.
  # keys_file: /etc/kvpilot/keys{{end}}
{{if .Routers}}
# Routers that decide as one: docs/fleet.md. All have the same key, by the variable KVPILOT_FLEET_KEY or a file.
fleet:
  listen: ":7946"
  key_file: /etc/kvpilot/fleet.key # openssl rand -base64 32
  join:{{range .Routers}}
    - {{printf "%q" .}}{{end}}
{{end}}
memory:
  # 0: the container's limit, or three quarters of the machine. docs/operations.md has what takes memory.
  max_bytes: 0

telemetry:
  traces:{{if .Traces}}
    # Spans go there over OTLP's gRPC; ratio is the share of traces that are kept.
    endpoint: {{printf "%q" .Traces}}
    ratio: 0.01{{else}}
    # Spans are not exported. endpoint: jaeger:4317 sends them there, over OTLP's gRPC.
    ratio: 0.01{{end}}
`))
