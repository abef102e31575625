package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"
)

// read reads the list of subjects that may be above their limit, and up to which number.
func read(file string) (figures, error) {
	src, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	list := figures{}
	lines := bufio.NewScanner(bytes.NewReader(src))
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var m measured
		var n int
		if _, err := fmt.Sscan(line, &m.kind, &n, &m.subject); err != nil {
			return nil, fmt.Errorf("%s:%d: want \"kind number subject\": %w", file, number, err)
		}
		list[m] = n
	}
	return list, lines.Err()
}

// compare says in words where the figures are above the list, and where the list can shrink.
func compare(now, list figures) (grown, shrunk []string) {
	for _, m := range now.above() {
		if now[m] > max(list[m], most[m.kind]) {
			grown = append(grown, fmt.Sprintf("%s has %d %s; the limit is %d. Which value or part is missing?", m.subject, now[m], m.kind, max(list[m], most[m.kind])))
		}
	}
	for m, n := range list {
		if now[m] < n {
			shrunk = append(shrunk, fmt.Sprintf("%s has %d %s, and the list says %d", m.subject, now[m], m.kind, n))
		}
	}
	return grown, shrunk
}

// lower writes the list again with the lower numbers of today. It raises none and adds none.
func lower(file string, now figures) error {
	list, err := read(file)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	fmt.Fprintln(&out, "# What is still above its limit: kind, number, subject. Numbers may only shrink: go run ./tools/limits -update")
	for _, m := range now.above() {
		if old, listed := list[m]; listed {
			fmt.Fprintf(&out, "%s %d %s\n", m.kind, min(old, now[m]), m.subject)
		}
	}
	return os.WriteFile(file, out.Bytes(), 0o644)
}
