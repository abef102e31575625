package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// shared is a folder that all tests have.
var shared string

func TestMain(m *testing.M) {
	var err error
	if shared, err = os.MkdirTemp("", "kvpilot-release-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(shared)
	os.Exit(code)
}

// repository makes one with a commit, a later change of its file and a file that is in no commit.
func repository(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	do := func(args ...string) {
		command := exec.CommandContext(t.Context(), "git", append([]string{"-C", folder, "-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "commit.gpgsign=false"}, args...)...)
		if said, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
	}
	do("init", "-q")
	write("file", "first")
	do("add", "file")
	do("commit", "-q", "-m", "first")
	do("tag", "v0.1.0")
	write("file", "second")
	do("commit", "-q", "-a", "-m", "second")
	write("file", "changed")
	write("stray", "uncommitted")
	return folder
}

func TestOnlyWhatIsCommittedIsReleased(t *testing.T) {
	folder, work := repository(t), t.TempDir()
	src, err := checkout(t.Context(), params{repository: folder, revision: "HEAD", version: "v0.2.0"}, filepath.Join(work, "src"))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(read(t, src.folder, "file")); got != "second" {
		t.Errorf("the file is %q", got)
	}
	if _, err := os.Stat(filepath.Join(src.folder, "stray")); err == nil {
		t.Error("a file of no commit is released")
	}
	if len(src.commit) != 40 || src.date.IsZero() {
		t.Errorf("the commit is %s of %s", src.commit, src.date)
	}
}

func TestAVersionOfAnotherCommitIsRefused(t *testing.T) {
	folder, work := repository(t), t.TempDir()
	_, err := checkout(t.Context(), params{repository: folder, revision: "HEAD", version: "v0.1.0"}, filepath.Join(work, "one"))
	if err == nil || !strings.Contains(err.Error(), "the tag v0.1.0 is at commit") {
		t.Errorf("got %v", err)
	}
	if _, err := checkout(t.Context(), params{repository: folder, revision: "v0.1.0", version: "v0.1.0"}, filepath.Join(work, "two")); err != nil {
		t.Error(err)
	}
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "thesis.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"-version must have the form": {"-version", "0.1.0"},
		"is \"v1\"":                   {"-version", "v1"},
		"-platforms must be of":       {"-version", "v0.1.0", "-platforms", "plan9/386"},
		"thesis.txt":                  {"-version", "v0.1.0", "-out", full},
		"unexpected argument":         {"-version", "v0.1.0", "now"},
		"no-such-commit":              {"-version", "v0.1.0", "-commit", "no-such-commit", "-out", t.TempDir()},
	} {
		if err := run(t.Context(), args, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want an error with %q", args, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(full, "thesis.txt")); err != nil {
		t.Errorf("a file of no release is gone: %v", err)
	}
}
