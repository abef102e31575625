package conformance

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

// The client packages are installed as a user would, and their tests and examples run against a router before simulated replicas: by
// `make test-python` and `make test-node` only, since that needs package registries.
func TestPythonPackage(t *testing.T) {
	venvs := filepath.SplitList(os.Getenv("KVPILOT_PYTHON_VENVS"))
	if len(venvs) == 0 {
		t.Skip("runs by make test-python")
	}
	source, err := filepath.Abs("../../client/python")
	if err != nil {
		t.Fatal(err)
	}
	run := func(t *testing.T, s *stack.Stack, venv string, args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(venv, "bin", "python"), args...)
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
	for _, venv := range venvs { // each before a router of its own, since they look at its load; together, since they wait more than they compute
		t.Run("tests of "+filepath.Base(venv), func(t *testing.T) {
			t.Parallel()
			run(t, startStack(t), venv, "-W", "error::RuntimeWarning", "-m", "pytest", "-q", "-p", "no:cacheprovider", filepath.Join(source, "tests"))
		})
	}
	s := startStack(t)
	for _, example := range []string{"choose.py", "direct.py", "sdk.py"} {
		t.Run(example, func(t *testing.T) {
			run(t, s, venvs[0], filepath.Join(source, "examples", example), s.GRPC, "sim", s.HTTP)
		})
	}
	at := strings.NewReplacer("localhost:9090", s.GRPC, "127.0.0.1:9090", s.GRPC, "localhost:8080", s.HTTP, "127.0.0.1:8080", s.HTTP)
	check := []string{"-m", "mypy", "--cache-dir", filepath.Join(filepath.Dir(venvs[0]), "mypy"), "--config-file", filepath.Join(source, "pyproject.toml")}
	folder := t.TempDir()
	for name, program := range snippets(t) {
		file := filepath.Join(folder, strings.NewReplacer("/", "_", ".", "_", "-", "_").Replace(name)+".py")
		if err := os.WriteFile(file, []byte(at.Replace(program)), 0o600); err != nil {
			t.Fatal(err)
		}
		check = append(check, file)
		t.Run(name, func(t *testing.T) { run(t, s, venvs[0], "-W", "error", file) })
	}
	t.Run("types of the snippets", func(t *testing.T) { run(t, s, venvs[0], check...) })
	t.Run("types of the snippets, by pyright", func(t *testing.T) { checkByPyright(t, venvs[0], folder) })
}

// checkByPyright checks the programs of a folder as editors do.
func checkByPyright(t *testing.T, venv, folder string) {
	t.Helper()
	pyright := os.Getenv("KVPILOT_PYRIGHT")
	if pyright == "" {
		t.Skip("pyright cannot be installed here")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, pyright, "--pythonpath", filepath.Join(venv, "bin", "python"), folder)
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !bytes.Contains(out, []byte("0 errors")) {
		t.Fatalf("pyright: %v", err)
	}
}

// startStack starts a router before two replicas. A choice keeps its weight though no request follows: how soon one would is a
// matter of the machine.
func startStack(t *testing.T) *stack.Stack {
	t.Helper()
	return stack.Start(t, stack.Options{
		Replicas:  2,
		Engine:    func(c *enginesim.Config) { c.Adapters = []string{"sql"} },
		Configure: func(c *config.Config) { c.Chooser.Stall.After = 0 },
	})
}

// snippets are the Python programs in the documents, by document and number. Those of the documents about the package must be
// there.
func snippets(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	documents, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range append(documents, "../../README.md", "../../client/python/README.md") {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		name, _ := filepath.Rel("../..", document)
		for i, block := range strings.Split("\n"+string(text), "\n```python\n")[1:] {
			program, _, closed := strings.Cut(block, "\n```")
			if !closed {
				t.Fatalf("%s: snippet %d has no end", name, i+1)
			}
			found[fmt.Sprintf("%s-%d", name, i+1)] = program + "\n"
		}
	}
	for _, name := range []string{"README.md-1", "client/python/README.md-1", "docs/clients.md-1", "docs/clients.md-2", "docs/clients.md-3"} {
		if found[name] == "" {
			t.Fatalf("no snippet %s", name)
		}
	}
	return found
}
