package main

import (
	"context"
	"fmt"
	"strconv"
)

// connectors are the packages that the KV connectors need, and what vLLM calls each.
var connectors = map[string]struct {
	class    string
	packages []string
}{
	"nixl":      {"NixlConnector", nixlPackages()},
	"nixl-push": {"NixlPushConnector", nixlPackages()},
}

// nixlPackages are NIXL's; the CUDA build works over TCP without a GPU.
func nixlPackages() []string { return []string{"nixl==1.5.1", "nixl-cu13==1.5.1"} }

// roles are those of the replicas that share requests, in their order. Two are enough, three keep sharing when one is dead.
func roles() []string { return []string{"prefill", "decode", "both"} }

// installConnector installs what the replicas' KV connector needs. A machine that cannot have it skips the run.
func (r *run) installConnector(ctx context.Context) error {
	if r.connector == "" || r.sim {
		return nil
	}
	with, known := connectors[r.connector]
	if !known {
		return fmt.Errorf("no connector %q", r.connector)
	}
	if r.logged(ctx, "install.log", r.python, "-c", "import nixl._api") == nil {
		return nil
	}
	args := append([]string{r.python, "-m", "uv", "pip", "install", "--python", r.python, "--no-progress", "--no-deps"}, with.packages...)
	if err := r.logged(ctx, "install.log", args...); err != nil {
		return fmt.Errorf("%v cannot be installed here (%w): %w", with.packages, err, errSkip)
	}
	if err := r.logged(ctx, "install.log", r.python, "-c", "import nixl._api"); err != nil {
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
	return args, []string{"VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT=" + strconv.Itoa(e.side), "UCX_TLS=tcp"}
}

// labels are the replica's in the router's settings; empty without a connector.
func (e *engine) labels() string {
	if e.connector == "" {
		return ""
	}
	return fmt.Sprintf(", labels: {kv_connector: %s, role: %s}", e.connector, e.role)
}
