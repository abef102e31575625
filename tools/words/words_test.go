package words

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

// repository is where the tests find the sources, relative to this package.
const repository = "../.."

// unread are the files that need a banned word, and the folders (without those below) that are still to be edited.
var unread = []string{
	"tools/words",                  // has the list
	"CONTRIBUTING.md",              // has the list
	"docs/adr/013-giving-way.md",   // withdrawn
	"internal/loadgen/text.go",     // a vocabulary of prompts
	"sim/enginesim/vocab/words.go", // a vocabulary of answers
}

// checked are the kinds of files that people read.
var checked = map[string]bool{".go": true, ".md": true, ".proto": true, ".yaml": true, ".yml": true, ".json": true, ".js": true, ".html": true, ".lua": true, ".cfg": true, ".conf": true, ".txt": true}

func TestBannedWords(t *testing.T) {
	err := fs.WalkDir(os.DirFS(repository), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if skipped(name) {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if entry.IsDir() || !checked[path.Ext(name)] {
			return nil
		}
		text, err := os.ReadFile(path.Join(repository, name))
		if err != nil {
			return err
		}
		hits := InText(string(text))
		if path.Ext(name) == ".go" {
			hits = InGo(text)
		}
		for _, hit := range hits {
			t.Errorf("%s:%d: %q: CONTRIBUTING.md has the words to use instead", name, hit.Line, hit.Word)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func skipped(name string) bool {
	base := path.Base(name)
	if name != "." && strings.HasPrefix(base, ".") || base == "testdata" || base == "node_modules" || strings.HasSuffix(name, "_test.go") {
		return true
	}
	return strings.HasPrefix(name, "gen/") || name == "bin" || name == "dist" || slices.Contains(unread, name) && path.Ext(name) != "" || slices.Contains(unread, path.Dir(name))
}
