package main

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

// clauses are the clauses of each folder that stand for a noun, each as "file:line: words".
type clauses map[string][]string

// generated are pages whose words are counted where they come from.
var generated = []string{"docs/config.md", "docs/reference-api.md"}

// count returns the clauses of Go comments, proto comments and Markdown pages below root.
func count(root string) (clauses, error) {
	now := clauses{}
	err := walk(root, func(name string, text []byte) error {
		if strings.Contains(name, "third_party/") || slices.Contains(generated, name) {
			return nil
		}
		for _, p := range passages(name, text) {
			for _, hit := range inPassage(p) {
				dir := path.Dir(name)
				now[dir] = append(now[dir], fmt.Sprintf("%s:%d: %s", name, hit.line, hit.word))
			}
		}
		return nil
	})
	return now, err
}

// read reads the list: how many clauses each folder may have.
func read(file string) (map[string]int, error) {
	src, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	list := map[string]int{}
	lines := bufio.NewScanner(bytes.NewReader(src))
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var n int
		var dir string
		if _, err := fmt.Sscan(line, &n, &dir); err != nil {
			return nil, fmt.Errorf("%s:%d: want \"number folder\": %w", file, number, err)
		}
		list[dir] = n
	}
	return list, lines.Err()
}

// compare says in words which folders have more clauses than the list allows, and where the list can shrink.
func compare(now clauses, list map[string]int) (grown, shrunk []string) {
	for _, dir := range slices.Sorted(maps.Keys(now)) {
		if n := len(now[dir]); n > list[dir] {
			grown = append(grown, fmt.Sprintf("%s has %d clauses that stand for a noun, and the list allows %d. Write the noun:\n%s", dir, n, list[dir], strings.Join(now[dir], "\n")))
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(list)) {
		if n := len(now[dir]); n < list[dir] {
			shrunk = append(shrunk, fmt.Sprintf("%s has %d, and the list allows %d", dir, n, list[dir]))
		}
	}
	return grown, shrunk
}

// lower writes the list again with the lower numbers of today. It raises none and adds none.
func lower(file string, now clauses) error {
	list, err := read(file)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	fmt.Fprintln(&out, "# Clauses that stand for a noun: number, folder. Numbers may only shrink: go run ./tools/words -update")
	for _, dir := range slices.Sorted(maps.Keys(list)) {
		if n := min(list[dir], len(now[dir])); n > 0 {
			fmt.Fprintln(&out, n, dir)
		}
	}
	return os.WriteFile(file, out.Bytes(), 0o644)
}
