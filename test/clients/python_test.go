// Package clients installs the client packages as a user would and runs their tests and examples
// against a router before simulated replicas. It runs by `make test-python` and `make test-node` only,
// since it needs package registries.
package clients

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

func TestPythonPackage(t *testing.T) {
	wheels, venv := os.Getenv("KVPILOT_PYTHON_DIST"), os.Getenv("KVPILOT_PYTHON_VENV")
	if venv == "" {
		t.Skip("runs by make test-python")
	}
	source, err := filepath.Abs("../../client/python")
	if err != nil {
		t.Fatal(err)
	}
	s := stack.Start(t, stack.Options{Replicas: 2, Engine: func(c *enginesim.Config) { c.Adapters = []string{"sql"} }})
	python := filepath.Join(venv, "bin", "python")
	t.Logf("package from %s", wheels)
	run := func(args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, python, args...)
		// Away from the sources, so that only the installed package can be imported.
		cmd.Dir = t.TempDir()
		cmd.Env = append(os.Environ(), "KVPILOT_GRPC="+s.GRPC, "KVPILOT_HTTP="+s.HTTP, "PYTHONDONTWRITEBYTECODE=1")
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		if len(bytes.TrimSpace(out)) == 0 {
			t.Fatalf("%v wrote nothing", args)
		}
	}
	run("-m", "pytest", "-q", "-p", "no:cacheprovider", filepath.Join(source, "tests"))
	run(filepath.Join(source, "examples", "choose.py"), s.GRPC, "sim")
	run(filepath.Join(source, "examples", "direct.py"), s.GRPC, "sim")
}
