package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestTypesStaySmall(t *testing.T) {
	now, err := measure("../..")
	if err != nil {
		t.Fatal(err)
	}
	list, err := read("limits.txt")
	if err != nil {
		t.Fatal(err)
	}
	grown, shrunk := compare(now, list)
	for _, words := range grown {
		t.Error(words)
	}
	if len(shrunk) > 0 {
		t.Errorf("types shrank, so the list does, too: go run ./tools/limits -update\n%s", strings.Join(shrunk, "\n"))
	}
}

const sample = `package sample

type Large[T any] struct {
	a, b, c, d, e bool
	f, g          func()
	h             T
}

func (l *Large[T]) one() {} //` + `nolint:unused // a sample
func (l Large[T]) two()  {}
`

func TestMeasure(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "server", "sample.go"), sample)
	write(t, filepath.Join(root, "server", "sample_test.go"), sample)
	write(t, filepath.Join(root, "gen", "sample.go"), sample)
	now, err := measure(root)
	if err != nil {
		t.Fatal(err)
	}
	for m, want := range (figures{
		{"fields", "server.Large"}: 8, {"bools", "server.Large"}: 5, {"methods", "server.Large"}: 2,
		{"funcs", "all"}: 2, {"nolint", "all"}: 1, {"lines", "product"}: 10,
	}) {
		if now[m] != want {
			t.Errorf("%s of %s = %d, want %d", m.kind, m.subject, now[m], want)
		}
	}
	if above := now.above(); !slices.Equal(above, []measured{{"bools", "server.Large"}}) {
		t.Errorf("above their limit: %v", above)
	}
}

func TestTheListMayOnlyShrink(t *testing.T) {
	file := filepath.Join(t.TempDir(), "limits.txt")
	write(t, file, "# words\n\nbools 7 server.A\nbools 9 server.B\nfields 30 server.C\n")
	now := figures{{"bools", "server.A"}: 6, {"bools", "server.B"}: 12, {"bools", "server.New"}: 5, {"fields", "server.C"}: 3}
	list, err := read(file)
	if err != nil {
		t.Fatal(err)
	}
	grown, shrunk := compare(now, list)
	if len(grown) != 2 || len(shrunk) != 2 {
		t.Errorf("grown %q, shrunk %q; want B and New, and A and C", grown, shrunk)
	}
	if err := lower(file, now); err != nil {
		t.Fatal(err)
	}
	list, err = read(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 || list[measured{"bools", "server.A"}] != 6 || list[measured{"bools", "server.B"}] != 9 {
		t.Errorf("the list is now %v", list)
	}
	write(t, file, "bools server.A\n")
	if _, err := read(file); err == nil || !strings.Contains(err.Error(), "limits.txt:1") {
		t.Errorf("a line without a number: %v", err)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
