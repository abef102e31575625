package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/lab/install"
)

// python is a router from PyPI in a virtual environment of its own.
type python struct {
	pip    string
	policy string // when the operator names none
	args   func(bin string, s *subject, f *fleet, at port) []string

	venv install.Venv
}

func (p *python) install(ctx context.Context, o *options) (string, error) {
	p.venv = install.Venv{Dir: filepath.Join(o.cache, p.pip), Log: filepath.Join(o.out, "install-"+p.pip+".log")}
	if v := p.venv.Version(ctx, p.pip); v != "" {
		return p.pip + " " + v, nil
	}
	base, err := install.Python(ctx, 12, 11, 10)
	if err != nil {
		return "", err
	}
	fmt.Printf("installing %s ...\n", p.pip)
	if err := p.venv.Make(ctx, base, p.pip); err != nil {
		return "", err
	}
	return p.pip + " " + p.venv.Version(ctx, p.pip), nil
}

func (p *python) follows(s *subject) bool { return s.policy == "kv_aware" }

func (p *python) command(s *subject, f *fleet, at port, _ string) ([]string, error) {
	if s.policy == "" {
		s.policy = p.policy
	}
	return p.args(filepath.Join(p.venv.Dir, "bin"), s, f, at), nil
}

// tuned is the cache-aware policy with thresholds for a small fleet: by default the busiest replica must have 64 requests more than
// the least busy one, which never happens with four, before load counts.
const tuned = "tuned"

// common are the arguments that the Rust gateways share.
func common(s *subject, f *fleet, at port) []string {
	policy := []string{s.policy}
	if s.policy == tuned {
		policy = []string{"cache_aware", "--balance-abs-threshold", "4", "--balance-rel-threshold", "1.2"}
	}
	args := append([]string{"--policy"}, policy...)
	args = append(args, "--host", "127.0.0.1", "--port", strconv.Itoa(at.http),
		"--prometheus-host", "127.0.0.1", "--prometheus-port", strconv.Itoa(at.admin), "--log-level")
	if s.kind == "smg" || s.kind == "sglang-router" {
		args = append(args, "warn")
	} else {
		args = append(args, "warning")
	}
	return append(append(args, "--worker-urls"), f.urls...)
}

// A queue of 100 that answers 429 behind it, the default of the Rust gateways, matters only above
// --max-concurrent-requests; their defaults stay as they are.

func vllmRouterArgs(bin string, s *subject, f *fleet, at port) []string {
	args := append([]string{filepath.Join(bin, "vllm-router")}, common(s, f, at)...)
	if s.policy != "kv_aware" {
		return args
	}
	for n, url := range f.urls {
		args = append(args, "--kv-event-source", url+"="+f.events[n], "--kv-event-replay-source", url+"="+f.replays[n])
	}
	return append(args, "--kv-event-block-size", "16", "--kv-event-model", model)
}

func smgArgs(bin string, s *subject, f *fleet, at port) []string {
	args := append([]string{filepath.Join(bin, "smg"), "launch", "--backend", "vllm"}, common(s, f, at)...)
	return append(args, "--disable-tokenizer-autoload") // there is no model to load one of
}

func sglangArgs(bin string, s *subject, f *fleet, at port) []string {
	return append([]string{filepath.Join(bin, "sglang-router"), "launch"}, common(s, f, at)...)
}

// proxy is HAProxy or nginx from the distribution.
type proxy struct{ program, policy string }

func (p *proxy) install(ctx context.Context, _ *options) (string, error) {
	path, err := install.Debian(ctx, p.program)
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, path, "-v").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s -v: %w", install.ErrAbsent, p.program, err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line), nil
}

func (p *proxy) follows(*subject) bool { return false }

func (p *proxy) command(s *subject, f *fleet, at port, dir string) ([]string, error) {
	if s.policy == "" {
		s.policy = p.policy
	}
	text, args := p.haproxy(s, f, at), []string{"haproxy", "-db", "-f"}
	if p.program == "nginx" {
		text, args = p.nginx(s, f, at, dir), []string{"nginx", "-e", filepath.Join(dir, "error.log"), "-c"}
	}
	file := filepath.Join(dir, p.program+".conf")
	return append(args, file), os.WriteFile(file, []byte(text), 0o644)
}

func (p *proxy) haproxy(s *subject, f *fleet, at port) string {
	var b strings.Builder
	fmt.Fprintf(&b, `global
  maxconn 8000
defaults
  mode http
  timeout connect 5s
  timeout client 30m
  timeout server 30m
  option http-keep-alive
frontend in
  bind 127.0.0.1:%d
  default_backend replicas
backend replicas
  balance %s
`, at.http, s.policy)
	for n, url := range f.urls {
		fmt.Fprintf(&b, "  server replica-%d %s\n", n, strings.TrimPrefix(url, "http://"))
	}
	return b.String()
}

func (p *proxy) nginx(s *subject, f *fleet, at port, dir string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `daemon off;
worker_processes 1;
pid %[1]s/nginx.pid;
events { worker_connections 10000; }
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  client_max_body_size 100m;
  client_body_buffer_size 1m;
  upstream replicas {
`, dir)
	if s.policy != "round_robin" {
		fmt.Fprintf(&b, "    %s;\n", s.policy)
	}
	for _, url := range f.urls {
		fmt.Fprintf(&b, "    server %s max_fails=0;\n", strings.TrimPrefix(url, "http://"))
	}
	fmt.Fprintf(&b, `    keepalive 256;
    keepalive_timeout 4s;
  }
  server {
    listen 127.0.0.1:%d;
    location / {
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 30m;
      proxy_send_timeout 30m;
    }
  }
}
`, at.http)
	return b.String()
}
