package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/kvpilot/kvpilot/lab/install"
)

// onCPU adds a function that MooncakeConnector of vLLM 0.33 calls and torch lacks without an accelerator. Python reads it at its start.
const onCPU = "import torch\ntorch.accelerator.current_device_index = lambda: 0\n"

// mooncakeFolder has the shared libraries that Mooncake's transfer engine is linked with, and the patch.
func (r *release) mooncakeFolder() string { return filepath.Join(r.cache, mooncake) }

// installMooncake unpacks Debian's packages of the libraries into the folder, and writes the patch.
func (r *release) installMooncake(ctx context.Context) error {
	folder := r.mooncakeFolder()
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "sitecustomize.py"), []byte(onCPU), 0o644); err != nil {
		return err
	}
	if found, err := filepath.Glob(filepath.Join(folder, "usr", "lib", "*", "libibverbs.so.1")); err == nil && len(found) > 0 {
		return nil
	}
	script := "cd " + folder + " && apt-get download libibverbs1 libnl-3-200 libnl-route-3-200 && for one in *.deb; do dpkg -x $one . || exit 1; done; cp -a lib/* usr/lib/ 2>/dev/null; true"
	return r.logged(ctx, "install.log", "sh", "-c", script)
}

// mooncakeEnvironment has a process find the libraries and the patch.
func (r *release) mooncakeEnvironment() []string {
	paths, err := filepath.Glob(filepath.Join(r.mooncakeFolder(), "usr", "lib", "*-linux-gnu"))
	if err != nil {
		return nil
	}
	return []string{"LD_LIBRARY_PATH=" + strings.Join(append(paths, os.Getenv("LD_LIBRARY_PATH")), ":"), "PYTHONPATH=" + r.mooncakeFolder()}
}

// imported reports why a module of the connector does not work; nil when it does.
func (r *release) imported(ctx context.Context, module string) error {
	return install.Run(ctx, filepath.Join(r.logs, "install.log"), append(append([]string{"env"}, r.mooncakeEnvironment()...), r.python, "-c", "import "+module)...)
}

// kvRole is vLLM's name of a role: an engine with Mooncake plays no other.
func kvRole(role string) string {
	switch role {
	case "prefill":
		return "kv_producer"
	case "decode":
		return "kv_consumer"
	}
	return "kv_both"
}
