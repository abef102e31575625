package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/lab/install"
)

// replica is where a simulated replica serves, and publishes its KV events.
type replica struct{ url, events, replay string }

// setting has a router's ports, the replicas before which it stands, and a folder for its files.
type setting struct {
	http, grpc, admin int
	replicas          []replica
	dir               string
}

// router is a router that the agents' load is played through.
type router interface {
	// install makes it ready and returns its version; install.ErrAbsent: it is not available here.
	install(ctx context.Context) (version string, err error)
	// command is its command line.
	command(s *setting) ([]string, error)
	// ready reports whether it serves all replicas.
	ready(ctx context.Context, s *setting) error
	// mark adds the agent's name to a call's body, where this router reads it.
	mark(body map[string]any, session string)
}

// routers are the routers by their names; o.cache is the folder for packages from PyPI.
func (o *options) routers() map[string]router {
	fromPyPI := func(name, policy string, more ...string) *gateway {
		return &gateway{venv: install.Venv{Dir: filepath.Join(o.cache, name), Log: filepath.Join(o.cache, "install-"+name+".log")}, name: name, policy: policy, more: more}
	}
	return map[string]router{
		"kvpilot":                   &kvpilot{o},
		"vllm-router:kv_aware":      fromPyPI("vllm-router", "kv_aware", "--kv-event-block-size", "16", "--kv-event-model", model),
		"vllm-router:cache_aware":   fromPyPI("vllm-router", "cache_aware"),
		"vllm-router:programs":      fromPyPI("vllm-router", "cache_aware", "--enable-program-scheduling", "--program-scheduling-config-json", o.programScheduling()),
		"sglang-router:cache_aware": fromPyPI("sglang-router", "cache_aware"),
	}
}

const (
	model     = "sim"
	blockSize = 16 // tokens, of the simulated replicas
)

// kvpilot is the product.
type kvpilot struct{ *options }

func (k *kvpilot) install(context.Context) (string, error) { return "kvpilot", nil }

func (k *kvpilot) command(s *setting) ([]string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: {http: \"127.0.0.1:%d\", grpc: \"127.0.0.1:%d\", admin: \"127.0.0.1:%d\"}\nregistry:\n  replicas:\n", s.http, s.grpc, s.admin)
	for i, r := range s.replicas {
		fmt.Fprintf(&b, "  - {id: replica-%d, url: %q, events: {endpoint: %q, replay: %q}}\n", i, r.url, r.events, r.replay)
	}
	file := filepath.Join(s.dir, "kvpilot.yaml")
	args := []string{k.kvpilot, "serve", "--config", file}
	for _, set := range k.set {
		args = append(args, "--set", set)
	}
	return args, os.WriteFile(file, []byte(b.String()), 0o600)
}

func (k *kvpilot) ready(ctx context.Context, s *setting) error {
	text, err := ask(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/kvpilot/v1/replicas", s.http), "")
	if err != nil {
		return err
	}
	if ready := strings.Count(text, "REPLICA_STATE_READY"); ready < len(s.replicas) {
		return fmt.Errorf("%d of %d replicas are ready", ready, len(s.replicas))
	}
	return nil
}

func (k *kvpilot) mark(map[string]any, string) {}

// gateway is a router from PyPI in a virtual environment of its own.
type gateway struct {
	venv         install.Venv
	name, policy string
	more         []string // arguments
}

func (g *gateway) install(ctx context.Context) (string, error) {
	if g.venv.Version(ctx, g.name) == "" {
		if err := os.MkdirAll(filepath.Dir(g.venv.Dir), 0o755); err != nil {
			return "", err
		}
		base, err := install.Python(ctx, 12, 11, 10)
		if err != nil {
			return "", err
		}
		if err := g.venv.Make(ctx, base, g.name); err != nil {
			return "", err
		}
	}
	return g.name + " " + g.venv.Version(ctx, g.name), nil
}

func (g *gateway) command(s *setting) ([]string, error) {
	args := []string{g.venv.Program(g.name)}
	if g.name == "sglang-router" {
		args = append(args, "launch")
	}
	args = append(args, "--host", "127.0.0.1", "--port", strconv.Itoa(s.http), "--policy", g.policy, "--prometheus-host", "127.0.0.1", "--prometheus-port", strconv.Itoa(s.admin))
	args = append(args, g.more...)
	var urls []string
	for _, r := range s.replicas {
		urls = append(urls, r.url)
		if g.policy == "kv_aware" {
			args = append(args, "--kv-event-source", r.url+"="+r.events, "--kv-event-replay-source", r.url+"="+r.replay)
		}
	}
	return append(append(args, "--worker-urls"), urls...), nil
}

// ready sends a small request, and has the router follow the replicas' events where it does.
func (g *gateway) ready(ctx context.Context, s *setting) error {
	if _, err := ask(ctx, http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d/v1/completions", s.http), `{"model":"`+model+`","prompt":"hello","max_tokens":1}`); err != nil {
		return err
	}
	if g.policy != "kv_aware" {
		return nil
	}
	for _, r := range s.replicas {
		text, err := ask(ctx, http.MethodGet, r.url+"/sim/state", "")
		if err != nil {
			return err
		}
		var state struct {
			Ranks []struct {
				Subscriptions int `json:"subscriptions"`
			} `json:"ranks"`
		}
		if err := json.Unmarshal([]byte(text), &state); err != nil {
			return err
		}
		if len(state.Ranks) == 0 || state.Ranks[0].Subscriptions == 0 {
			return errors.New(r.url + " has no subscriber")
		}
	}
	return nil
}

// mark names the agent as vllm-router's documents say: its program scheduling reads nothing else by default. sglang-router reads text alone.
func (g *gateway) mark(body map[string]any, session string) {
	switch g.name {
	case "sglang-router":
		body["prompt"] = textOf(body["prompt"].([]int))
	case "vllm-router":
		body["vllm_xargs"] = map[string]any{"agentic_context": map[string]any{"program_id": session, "session_id": session}}
	}
}

// textOf is text of as many tokens of the simulated replicas' tokenizer: words of five letters are two tokens each.
func textOf(ids []int) string {
	b := make([]byte, 0, 3*len(ids))
	for i, id := range ids {
		at := byte(' ')
		if i%2 == 1 {
			at = letter(id / (letters * letters))
		}
		b = append(b, at, letter(id/letters), letter(id))
	}
	return string(b)
}

const letters = 26

func letter(n int) byte { return 'a' + byte(n%letters) }

// programScheduling is the configuration of vllm-router's program scheduling that its documents recommend, with the memory and the speed of the
// simulated replicas instead of the defaults.
func (o *options) programScheduling() string {
	// A prefill of n thousand tokens takes n/8 + n²/800 seconds at speed 1, a step 10 ms, 50 µs per sequence and 17 ns per token of context.
	text, err := json.Marshal(map[string]any{
		"global_queue": true, "token_capacity_per_target": o.blocks * blockSize,
		"prefill_cost_model": map[string]float64{
			"intercept_seconds": 0.01 / o.speed, "linear_seconds_per_1k_tokens": 0.125 / o.speed, "quadratic_seconds_per_1k_tokens_squared": 0.00125 / o.speed,
			"decode_throughput_alpha": 0.15,
		},
		"decode_throughput_model": map[string]float64{
			"fixed_step_seconds": 0.01 / o.speed, "batch_step_seconds_per_request": 50e-6 / o.speed, "context_step_seconds_per_token": 17e-9 / o.speed,
		},
	})
	if err != nil {
		panic(err) // numbers are encoded
	}
	return string(text)
}

// ask sends a request that must succeed, and returns the answer's text.
func ask(ctx context.Context, method, url, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s: %.200s", url, resp.Status, text)
	}
	return string(text), nil
}
