package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// toolchain compiles releases, and this program too: another version of Go makes other binaries and may compress differently. The Makefile
// reads it from here and sets GOTOOLCHAIN; go downloads it where it is not the installed one.
const toolchain = "go1.26.8"

// buildFlags are the flags of make build, without a machine's additions.
var buildFlags = []string{"-trimpath", "-buildvcs=false", "-mod=readonly", "-tags=grpcnotrace"}

// builder compiles the sources.
type builder struct {
	src           source
	version, work string
}

// build returns the path of the binary for a platform.
func (b builder) build(ctx context.Context, platform string) (string, error) {
	system, processor, _ := strings.Cut(platform, "/")
	path := filepath.Join(b.work, "kvpilot-"+system+"-"+processor)
	command := exec.CommandContext(ctx, "go", append(append([]string{"build"}, buildFlags...), "-ldflags="+b.linkerFlags(), "-o", path, "./cmd/kvpilot")...)
	command.Dir = b.src.folder
	env, err := goEnvironment(ctx)
	if err != nil {
		return "", err
	}
	command.Env = append(env, "GOOS="+system, "GOARCH="+processor)
	if said, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build for %s: %w\n%s", platform, err, said)
	}
	return path, nil
}

// linkerFlags stamp the version, and leave out tables for debuggers.
func (b builder) linkerFlags() string {
	stamp := "-X " + modulePath + "/cmd/internal/build."
	return "-s -w -buildid= " + stamp + "version=" + b.version + " " + stamp + "commit=" + b.src.commit + " " + stamp + "date=" + b.src.date.Format(time.RFC3339)
}

// goEnvironment is the environment of the go command: where modules come from and caches are is the machine's, the parts that enter a
// binary are fixed.
func goEnvironment(ctx context.Context) ([]string, error) {
	said, err := output(exec.CommandContext(ctx, "go", "env", "-json", "GOPROXY", "GOSUMDB", "GONOSUMDB", "GONOPROXY", "GOPRIVATE", "GOMODCACHE", "GOCACHE", "GOPATH"))
	if err != nil {
		return nil, err
	}
	var kept map[string]string
	if err := json.Unmarshal(said, &kept); err != nil {
		return nil, err
	}
	var env []string
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); !strings.HasPrefix(name, "GO") && !strings.HasPrefix(name, "CGO") {
			env = append(env, variable)
		}
	}
	for name, value := range kept {
		env = append(env, name+"="+value)
	}
	return append(env, "GOENV=off", "GOWORK=off", "GOFLAGS=", "GOEXPERIMENT=", "GOTOOLCHAIN="+toolchain, "CGO_ENABLED=0", "GOAMD64=v1", "GOARM64=v8.0", "GOFIPS140=off"), nil
}

// extraFiles are the files next to the binary in archives, by their names there.
func (b builder) extraFiles(ctx context.Context, binaries map[string]string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for name, from := range map[string]string{
		"LICENSE": "LICENSE", "README.md": "README.md", "kvpilot.example.yaml": "docs/config.example.yaml",
		"systemd/kvpilot.service": "deploy/systemd/kvpilot.service", "systemd/kvpilot.sysusers": "deploy/systemd/kvpilot.sysusers",
	} {
		content, err := os.ReadFile(filepath.Join(b.src.folder, from))
		if err != nil {
			return nil, err
		}
		files[name] = content
	}
	platform := runtime.GOOS + "/" + runtime.GOARCH
	own, built := binaries[platform]
	var err error
	if !built {
		if own, err = b.build(ctx, platform); err != nil {
			return nil, err
		}
	}
	for shell, name := range map[string]string{"bash": "kvpilot.bash", "zsh": "_kvpilot", "fish": "kvpilot.fish"} {
		if files["completions/"+name], err = output(exec.CommandContext(ctx, own, "completion", shell)); err != nil {
			return nil, err
		}
	}
	return files, nil
}
