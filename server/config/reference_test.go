package config_test

import (
	"flag"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
)

var update = flag.Bool("update", false, "rewrite docs/config.md and docs/config.example.yaml")

func TestTheReferenceIsUpToDate(t *testing.T) {
	for name, write := range map[string]func(fs.FS) (string, error){"config.md": config.Reference, "config.example.yaml": config.SampleFile} {
		file := "../../docs/" + name
		want, err := write(os.DirFS("../.."))
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
			t.Errorf("docs/%s differs from the sources: run make docs and commit it", name)
		}
	}
}

func TestTheExampleSetsTheDefaults(t *testing.T) {
	got, err := config.Load(config.Source{File: "../../docs/config.example.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range config.Paths() {
		if name := path[strings.LastIndex(path, ".")+1:]; !strings.Contains(read(t, "../../docs/config.example.yaml"), " "+name+": ") {
			t.Errorf("%s is not in the example", path)
		}
	}
	if was, is := printed(t, config.Default()), printed(t, got); was != is {
		t.Errorf("the example sets something else than the defaults:\n%s\nwant\n%s", is, was)
	}
}

func printed(t *testing.T, c config.Config) string {
	t.Helper()
	var out strings.Builder
	if err := config.Print(&out, c); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEverySettingIsExplained(t *testing.T) {
	text, err := config.Reference(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range config.Paths() {
		row := ""
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "- `"+path+"`") {
				row = line
			}
		}
		if _, meaning, _ := strings.Cut(row, ": "); strings.TrimSpace(meaning) == "" {
			t.Errorf("%s is not explained: %q", path, row)
		}
	}
}
