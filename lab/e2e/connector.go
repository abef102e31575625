package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// connectors are the packages that the KV connectors need, and their classes in vLLM.
var connectors = map[string]struct {
	class    string
	packages []string
	imports  string // a module that shows whether they work
}{
	"nixl":      {"NixlConnector", nixlPackages(), "nixl._api"},
	"nixl-push": {"NixlPushConnector", nixlPackages(), "nixl._api"},
	mooncake:    {"MooncakeConnector", []string{"mooncake-transfer-engine-non-cuda==0.3.13.post1"}, "mooncake.engine"},
}

// mooncake is the connector whose transfer engine needs libraries of the system, and a patch of torch on a CPU.
const mooncake = "mooncake"

// nixlPackages are NIXL's; the CUDA build works over TCP without a GPU.
func nixlPackages() []string { return []string{"nixl==1.5.1", "nixl-cu13==1.5.1"} }

// roles are the roles of replicas that share requests, in their order. Two are enough, three keep sharing when one is dead.
func roles() []string { return []string{"prefill", "decode", "both"} }

// installEngine installs vLLM. A machine that cannot have several engines with a connector skips the run.
func (r *run) installEngine(ctx context.Context) error {
	if r.connector == "" || r.sim {
		return r.install(ctx)
	}
	free, err := availableMemory()
	if err != nil {
		return err
	}
	if need := int64(r.replicas) * engineMemory; free < need {
		return fmt.Errorf("%d engines need %d MB of memory, %d are available: %w", r.replicas, need>>20, free>>20, errSkip)
	}
	if err := r.install(ctx); err != nil {
		return fmt.Errorf("%w: %w", err, errSkip)
	}
	return nil
}

// engineMemory is the memory of an engine of the tiny model with its workers, in bytes.
const engineMemory = 3 << 30

// availableMemory is the system's available memory in bytes.
func availableMemory() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("%w: %w", err, errSkip)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("no MemAvailable in /proc/meminfo: %w", errSkip)
}

// installConnector installs the packages of the replicas' KV connector. A machine that cannot have it skips the run.
func (r *run) installConnector(ctx context.Context) error {
	if r.connector == "" || r.sim {
		return nil
	}
	with, known := connectors[r.connector]
	if !known {
		return fmt.Errorf("no connector %q", r.connector)
	}
	if r.connector == mooncake {
		if err := r.installMooncake(ctx); err != nil {
			return fmt.Errorf("what Mooncake needs of the system cannot be had here (%w): %w", err, errSkip)
		}
	}
	if r.imported(ctx, with.imports) == nil {
		return nil
	}
	args := append([]string{r.python, "-m", "uv", "pip", "install", "--python", r.python, "--no-progress", "--no-deps"}, with.packages...)
	if err := r.logged(ctx, "install.log", args...); err != nil {
		return fmt.Errorf("%v cannot be installed here (%w): %w", with.packages, err, errSkip)
	}
	if err := r.imported(ctx, with.imports); err != nil {
		return fmt.Errorf("%v does not run here (%w): %w", with.packages, err, errSkip)
	}
	return nil
}

// connecting are the arguments and the environment that an engine's connector needs; none without one.
func (e *engine) connecting() (args, environment []string) {
	if e.connector == "" {
		return nil, nil
	}
	args = []string{"--kv-transfer-config", fmt.Sprintf(`{"kv_connector":%q,"kv_role":"kv_both"}`, connectors[e.connector].class)}
	if e.connector == mooncake {
		args[1] = fmt.Sprintf(`{"kv_connector":%q,"kv_role":%q,"kv_connector_extra_config":{"mooncake_protocol":"tcp"}}`, connectors[e.connector].class, kvRole(e.role))
		return args, append(e.vllm.mooncakeEnvironment(), "VLLM_HOST_IP=127.0.0.1", "VLLM_MOONCAKE_BOOTSTRAP_PORT="+strconv.Itoa(e.side),
			"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT=30") // 480 otherwise
	}
	return args, []string{"VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT=" + strconv.Itoa(e.side), "UCX_TLS=tcp"}
}

// labels are the replica's in the router's settings; empty without a connector.
func (e *engine) labels() string {
	if e.connector == "" {
		return ""
	}
	if e.connector == mooncake {
		return fmt.Sprintf(", labels: {kv_connector: %s, role: %s, kv_bootstrap: \"%d\"}", e.connector, e.role, e.bootstrap())
	}
	return fmt.Sprintf(", labels: {kv_connector: %s, role: %s}", e.connector, e.role)
}

// bootstrap is the port of Mooncake's bootstrap server.
func (e *engine) bootstrap() int {
	if e.vllm.sim {
		return e.http
	}
	return e.side
}
