package hostile

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/test/stack"
)

// The commands of docs/replicas.md work as they are, where registration is on.
func TestTheCommandsOfTheReplicasPageWork(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	page, err := os.ReadFile("../../docs/replicas.md")
	if err != nil {
		t.Fatal(err)
	}
	s := stack.Start(t, stack.Options{Configure: func(c *config.Config) {
		c.Registry.Registration.Enabled = true
		c.Registry.Replicas[0].ID = "gpu-1"
	}})
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 2 {
		t.Fatalf("%d blocks of commands", len(blocks))
	}
	for _, block := range blocks {
		commands := strings.NewReplacer("localhost:8080", s.HTTP, "10.0.0.9", "127.0.0.1").Replace(block[1])
		// A watch has no end: curl gives it up with status 28.
		script := "set -e\ncurl() { command curl --fail-with-body --max-time 2 \"$@\" || test $? = 28; }\n" + commands
		if out, err := exec.CommandContext(t.Context(), "sh", "-c", script).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s\n%s", err, commands, out)
		}
	}
}
