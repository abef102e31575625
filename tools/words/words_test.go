package main

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// repository is where the tests find the sources, relative to this package.
const repository = "../.."

func TestBannedWords(t *testing.T) {
	reads(t)
	err := walk(repository, func(name string, text []byte) error {
		hits := inText(string(text))
		if path.Ext(name) == ".go" {
			hits = inGo(text)
		}
		for _, hit := range hits {
			t.Errorf("%s:%d: %q: CONTRIBUTING.md has the words to use instead", name, hit.line, hit.word)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestClausesGetFewer(t *testing.T) {
	reads(t)
	now, err := count(repository)
	if err != nil {
		t.Fatal(err)
	}
	list, err := read("clauses.txt")
	if err != nil {
		t.Fatal(err)
	}
	grown, shrunk := compare(now, list)
	for _, words := range grown {
		t.Error(words)
	}
	if len(shrunk) > 0 {
		t.Errorf("clauses went, so the list shrinks, too: go run ./tools/words -update\n%s", strings.Join(shrunk, "\n"))
	}
}

func TestTheListMayOnlyShrink(t *testing.T) {
	file := filepath.Join(t.TempDir(), "clauses.txt")
	if err := os.WriteFile(file, []byte("# words\n7 a\n9 b\n3 c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	now := clauses{"a": make([]string, 6), "b": make([]string, 12), "new": make([]string, 1)}
	list, err := read(file)
	if err != nil {
		t.Fatal(err)
	}
	grown, shrunk := compare(now, list)
	if len(grown) != 2 || len(shrunk) != 2 {
		t.Errorf("grown %q, shrunk %q; want b and new, and a and c", grown, shrunk)
	}
	if err := lower(file, now); err != nil {
		t.Fatal(err)
	}
	list, err = read(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 || list["a"] != 6 || list["b"] != 9 {
		t.Errorf("the list is now %v", list)
	}
	if err := os.WriteFile(file, []byte("many a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := read(file); err == nil || !strings.Contains(err.Error(), "clauses.txt:1") {
		t.Errorf("a line without a number: %v", err)
	}
}

func TestClauses(t *testing.T) {
	for text, want := range map[string][]string{
		"A lease is what the caller renews.":                              {"what the caller"},
		"What it holds is freed.":                                         {"What it holds"},
		"It drops what is late, and\nwhat is early.":                      {"what is late", "what is early"},
		"Those that wait are rejected.":                                   {"Those that wait"},
		"Its tokens and those of the answer":                              {"those of the"},
		"the key is that of the tenant":                                   {"that of the"},
		"the one that owns it, the ones with a lease":                     {"the one that", "the ones with"},
		"An error says what is wrong, and what fails.":                    nil,
		"It depends on what the engine has cached.":                       nil,
		"It says where to connect and what it sends, and drops what came": {"what came"},
		"What does it cost? What to do, what if, and where to find what.": nil,
		"It shows\nwhat happened":                                         nil,
		"A small one that of course waits, so that of two the first wins": nil,
		"the field What of a source":                                      nil,
		"those requests, and the one before":                              nil,
		"Ask it \"what is a cache\"":                                      nil,
	} {
		var got []string
		for _, hit := range inPassage(passage{1, text}) {
			got = append(got, hit.word)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestPassages(t *testing.T) {
	for name, files := range map[string]struct {
		text string
		want []passage
	}{
		"page.md": {
			"# What it is\n\nText `what is code`\nand [a](#what-is) link.\n- item\n  of two\n\n| what | x |\n|---|---|\n| a | b |\n\n```\nwhat is\n```\n**What it is.** End\n",
			[]passage{{3, "Text `code`\nand [a](link) link."}, {5, "item\n  of two"}, {10, " a "}, {10, " b "}, {15, " End"}},
		},
		"code.go": {
			"// Package a has\n// two lines.\n//\n//\twhat is code\npackage a\n\nvar (\n\ta int // first\n\tb int // second\n)\n//go:build what\n/* block */\n",
			[]passage{{1, " Package a has\n two lines."}, {8, " first"}, {9, " second"}, {12, " block "}},
		},
		"a.proto": {
			"// One\n// two.\nmessage A {\n  int32 a = 1; // what\n}\n",
			[]passage{{1, " One\n two."}, {4, " what"}},
		},
	} {
		if got := passages(name, []byte(files.text)); !slices.Equal(got, files.want) {
			t.Errorf("%s: %+v\nwant %+v", name, got, files.want)
		}
	}
}
