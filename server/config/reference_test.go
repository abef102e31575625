package config_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
)

var update = flag.Bool("update", false, "rewrite docs/config.md")

func TestTheReferenceIsUpToDate(t *testing.T) {
	const file = "../../docs/config.md"
	want, err := config.Reference(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/config.md differs from the sources: run make docs and commit it")
	}
}

func TestEverySettingIsExplained(t *testing.T) {
	text, err := config.Reference(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range config.Paths() {
		row := ""
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "| `"+path+"` |") {
				row = line
			}
		}
		if cells := strings.Split(row, "|"); len(cells) < 5 || strings.TrimSpace(cells[3]) == "" {
			t.Errorf("%s is not explained: %q", path, row)
		}
	}
}
