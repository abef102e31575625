package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// TestGoInstall makes the module's zip as a proxy does and, unless -short is set, installs the program from it: without a clone, with
// modules of the cache alone.
func TestGoInstall(t *testing.T) {
	src, err := checkout(t.Context(), testParams(""), filepath.Join(t.TempDir(), "src"))
	if err != nil {
		t.Fatal(err)
	}
	mod := read(t, src.folder, "go.mod")
	parsed, err := modfile.Parse("go.mod", mod, nil)
	if err != nil || len(parsed.Replace) > 0 || len(parsed.Exclude) > 0 {
		t.Fatalf("go install refuses replace and exclude: %v, %v: %v", parsed.Replace, parsed.Exclude, err)
	}
	var packed bytes.Buffer // Create refuses what is over the limits of modules
	if err := zip.CreateFromDir(&packed, module.Version{Path: modulePath, Version: testVersion}, src.folder); err != nil {
		t.Fatal(err)
	}
	t.Logf("the module's zip has %d bytes", packed.Len())
	if testing.Short() {
		return
	}
	proxy := t.TempDir()
	for name, content := range map[string][]byte{"list": []byte(testVersion + "\n"), testVersion + ".info": []byte(`{"Version":"` + testVersion + `"}`), testVersion + ".mod": mod, testVersion + ".zip": packed.Bytes()} {
		path := filepath.Join(proxy, modulePath, "@v", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	cache, err := output(exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE"))
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	// Trimmed paths let the build cache serve the packages of other modules.
	line := strings.Fields(strings.Replace(commands(t, "go install"), "@latest", "@"+testVersion, 1))
	install := exec.CommandContext(t.Context(), line[0], line[1:]...)
	install.Dir = bin
	install.Env = append(os.Environ(), "GOBIN="+bin, "GOFLAGS=-trimpath -modcacherw", "GOMODCACHE="+t.TempDir(), "GOSUMDB=off", "CGO_ENABLED=0",
		"GOPROXY=file://"+proxy+",file://"+strings.TrimSpace(string(cache))+"/cache/download")
	if said, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	said, err := exec.CommandContext(t.Context(), filepath.Join(bin, "kvpilot"), "version").CombinedOutput()
	if err != nil || !strings.Contains(string(said), testVersion) {
		t.Errorf("%v\n%s", err, said)
	}
}
