package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

var shell = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// commands are those of the first shell block below a heading of docs/install.md.
func commands(t *testing.T, heading string) string {
	t.Helper()
	_, section, ok := strings.Cut(string(read(t, "../../docs/install.md")), "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	block := shell.FindStringSubmatch(section)
	if !ok || block == nil {
		t.Fatalf("docs/install.md has no commands below %q", heading)
	}
	return block[1]
}

// TestTheInstallPageWorks runs the page's commands over the files of a release, with its version and platform, into a folder in
// place of /usr/local.
func TestTheInstallPageWorks(t *testing.T) {
	if _, err := exec.LookPath("sha256sum"); err != nil {
		t.Skip("SKIPPED: no sha256sum")
	}
	folder, prefix := t.TempDir(), t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(dist(t))); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(prefix, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	here := strings.NewReplacer("v0.1.0", testVersion, "linux_amd64", runtime.GOOS+"_"+runtime.GOARCH, "/usr/local", prefix)
	for heading, want := range map[string]string{"Verify": "gitCommit", "Archive": testVersion} {
		script := "set -eu\nsudo() { \"$@\"; }\nPATH=" + prefix + "/bin:$PATH\n" + here.Replace(commands(t, heading))
		command := exec.CommandContext(t.Context(), "bash", "-c", script)
		command.Dir = folder
		if said, err := command.CombinedOutput(); err != nil || !strings.Contains(string(said), want) {
			t.Errorf("%s: %v, want %q\n%s\n%s", heading, err, want, script, said)
		}
	}
}

// TestTheInstallPageNamesEveryFile compares its table with a release.
func TestTheInstallPageNamesEveryFile(t *testing.T) {
	page := string(read(t, "../../docs/install.md"))
	entries, err := os.ReadDir(dist(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := strings.Replace(e.Name(), testVersion, "VERSION", 1)
		for _, platform := range testPlatforms() {
			name = strings.Replace(name, strings.ReplaceAll(platform, "/", "_"), "SYSTEM_PROCESSOR", 1)
		}
		if !strings.Contains(page, "\n| `"+name+"` |") {
			t.Errorf("docs/install.md does not describe %s", name)
		}
	}
}
