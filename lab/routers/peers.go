package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// python is a router from PyPI in a virtual environment of its own.
type python struct {
	pip    string
	policy string // when the operator names none
	args   func(bin string, s *subject, f *fleet, at port) []string

	venv string
}

func (p *python) install(ctx context.Context, o *options) (string, error) {
	p.venv = filepath.Join(o.cache, p.pip)
	if v := p.installed(ctx); v != "" {
		return p.pip + " " + v, nil
	}
	base, err := findPython(ctx, 12)
	if err != nil {
		return "", err
	}
	if err := pip(ctx, o, base, p.venv, p.pip); err != nil {
		return "", err
	}
	return p.pip + " " + p.installed(ctx), nil
}

// installed is the version that is there, or "".
func (p *python) installed(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, filepath.Join(p.venv, "bin", "python"), "-c", "import importlib.metadata as m; print(m.version('"+p.pip+"'))").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

func (p *python) follows(s *subject) bool { return s.policy == "kv_aware" }

func (p *python) command(s *subject, f *fleet, at port, _ string) ([]string, error) {
	if s.policy == "" {
		s.policy = p.policy
	}
	return p.args(filepath.Join(p.venv, "bin"), s, f, at), nil
}

// common are the arguments that the Rust gateways share.
func common(s *subject, f *fleet, at port) []string {
	args := []string{"--host", "127.0.0.1", "--port", strconv.Itoa(at.http), "--policy", s.policy,
		"--prometheus-host", "127.0.0.1", "--prometheus-port", strconv.Itoa(at.admin), "--log-level"}
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

// findPython looks for an interpreter of version 3.10 to 3.most with venv.
func findPython(ctx context.Context, most int) (string, error) {
	for minor := most; minor >= 10; minor-- {
		names := []string{fmt.Sprintf("python3.%d", minor), "python3"}
		if found, err := filepath.Glob(filepath.Join(os.Getenv("HOME"), fmt.Sprintf(".pyenv/versions/3.%d.*/bin/python3", minor))); err == nil {
			names = append(names, found...)
		}
		for _, name := range names {
			path, err := exec.LookPath(name)
			if err != nil {
				continue
			}
			check := fmt.Sprintf("import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, %d))", minor)
			if exec.CommandContext(ctx, path, "-c", check).Run() == nil {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%w: no Python from 3.10 to 3.%d with venv was found", errSkip, most)
}

// pip makes a virtual environment with packages.
func pip(ctx context.Context, o *options, base, venv string, packages ...string) error {
	fmt.Printf("installing %s ...\n", strings.Join(packages, " "))
	log, err := os.Create(filepath.Join(o.out, "install-"+filepath.Base(venv)+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	for _, args := range [][]string{
		{base, "-m", "venv", venv},
		append([]string{filepath.Join(venv, "bin", "python"), "-m", "pip", "install", "--quiet"}, packages...),
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%w: %s cannot be installed here: %w; see %s", errSkip, strings.Join(packages, " "), err, log.Name())
		}
	}
	return nil
}

// proxy is HAProxy or nginx from the distribution.
type proxy struct{ program, policy string }

func (p *proxy) install(ctx context.Context, _ *options) (string, error) {
	if _, err := exec.LookPath(p.program); err != nil {
		if os.Getuid() != 0 {
			return "", fmt.Errorf("%w: %s is not installed", errSkip, p.program)
		}
		fmt.Printf("installing %s ...\n", p.program)
		if out, err := exec.CommandContext(ctx, "apt-get", "install", "-y", "-q", p.program).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: apt-get install %s: %w: %.200s", errSkip, p.program, err, out)
		}
	}
	out, err := exec.CommandContext(ctx, p.program, "-v").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s -v: %w", errSkip, p.program, err)
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
