package main

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// unread are the files that need a banned word, and the folders (without their subfolders) that have such files.
var unread = []string{
	"tools/words",                  // has the list
	"CONTRIBUTING.md",              // has the list
	"docs/adr/013-giving-way.md",   // withdrawn
	"internal/loadgen/text.go",     // a vocabulary of prompts
	"sim/enginesim/vocab/words.go", // a vocabulary of answers
}

// checked are the kinds of files that people read.
var checked = map[string]bool{".go": true, ".md": true, ".proto": true, ".yaml": true, ".yml": true, ".json": true, ".js": true, ".html": true, ".lua": true, ".cfg": true, ".conf": true, ".txt": true}

// walk calls visit with each file below root that people read and that is not generated, tests apart.
func walk(root string, visit func(name string, text []byte) error) error {
	return fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
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
		text, err := os.ReadFile(path.Join(root, name))
		if err != nil {
			return err
		}
		return visit(name, text)
	})
}

func skipped(name string) bool {
	base := path.Base(name)
	if name != "." && strings.HasPrefix(base, ".") || base == "testdata" || base == "node_modules" || strings.HasSuffix(name, "_test.go") {
		return true
	}
	return strings.HasPrefix(name, "gen/") || name == "bin" || name == "dist" || slices.Contains(unread, name) && path.Ext(name) != "" || slices.Contains(unread, path.Dir(name))
}
