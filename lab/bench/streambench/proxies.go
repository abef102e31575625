package streambench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/internal/proc"
	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

// startNginx starts Debian's nginx as a plain streaming proxy with one worker per CPU core of two.
func (l *launcher) startNginx(ctx context.Context) (*process, error) {
	return l.startProxy(ctx, Nginx, "nginx.conf", func(address string) string {
		return fmt.Sprintf(`worker_processes 2;
daemon off;
pid %[1]s/nginx-%[3]s.pid;
error_log stderr crit;
worker_rlimit_nofile 20000;
events { worker_connections 16000; }
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  client_max_body_size 64m;
  client_body_buffer_size 2m;
  keepalive_requests 1000000;
  upstream replica { server %[2]s; keepalive 1024; keepalive_requests 1000000; }
  server {
    listen %[3]s backlog=4096;
    location / {
      proxy_pass http://replica;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 1h;
    }
  }
}
`, l.dir, l.upstream.address, address)
	}, "nginx", "-c", filepath.Join(l.dir, "nginx.conf"), "-p", l.dir)
}

// startHAProxy starts Debian's HAProxy with two threads.
func (l *launcher) startHAProxy(ctx context.Context) (*process, error) {
	return l.startProxy(ctx, HAProxy, "haproxy.cfg", func(address string) string {
		return fmt.Sprintf(`global
  nbthread 2
  maxconn 8000
defaults
  mode http
  timeout connect 5s
  timeout client 1h
  timeout server 1h
  option http-no-delay
  http-reuse always
frontend in
  bind %s
  default_backend replica
backend replica
  server r1 %s maxconn 8000
`, address, l.upstream.address)
	}, "haproxy", "-db", "-q", "-f", filepath.Join(l.dir, "haproxy.cfg"))
}

// startProxy writes the configuration, starts the program, and waits until it answers.
func (l *launcher) startProxy(ctx context.Context, name, file string, config func(address string) string, args ...string) (*process, error) {
	program, err := l.program(args[0])
	if err != nil {
		return nil, err
	}
	free, err := proc.FreeAddresses(ctx, 1)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(l.dir, file), []byte(config(free[0])), 0o600); err != nil {
		return nil, err
	}
	cmd := proc.Bound(ctx, slices.Concat(l.pin, []string{program}, args[1:])...)
	cmd.Stderr = os.Stderr
	return serving(ctx, name, free[0], cmd, func() error {
		_, err := measure.Get(ctx, free[0], "/health")
		return err
	})
}

// children lists the direct children of a process.
func children(pid int) []int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", pid))
	if err != nil {
		return nil
	}
	var pids []int
	for field := range strings.FieldsSeq(string(text)) {
		if n, err := strconv.Atoi(field); err == nil {
			pids = append(pids, n)
		}
	}
	return pids
}
