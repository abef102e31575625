package main

import (
	"bytes"
	"encoding/json"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/cmd/internal/build"
)

func TestVersionIsPrintedForPeopleAndPrograms(t *testing.T) {
	var table, short bytes.Buffer
	if err := run(t.Context(), []string{"version"}, nil, &table, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"version   ", "commit   ", "date   ", "modified   ", runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH} {
		if !strings.Contains(table.String(), word) {
			t.Errorf("no %q in\n%s", word, table.String())
		}
	}
	for _, args := range [][]string{{"version", "-o", "json"}, {"version", "--output=json"}} {
		var text bytes.Buffer
		var got build.Info
		if err := run(t.Context(), args, nil, &text, io.Discard); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text.Bytes(), &got); err != nil || got != build.Read() {
			t.Errorf("%v: %+v, %v; want %+v", args, got, err, build.Read())
		}
	}
	if err := run(t.Context(), []string{"--version"}, nil, &short, io.Discard); err != nil || short.String() != "kvpilot version "+build.Read().String()+"\n" {
		t.Errorf("--version prints %q, %v", short.String(), err)
	}
	if err := run(t.Context(), []string{"version", "-o", "xml"}, nil, io.Discard, io.Discard); err == nil {
		t.Error("an unknown format is accepted")
	}
}

func TestAModifiedBuildSaysSo(t *testing.T) {
	for want, info := range map[string]build.Info{
		"modified   unknown": {}, "modified   no": {Commit: "0123"}, "modified   yes": {Commit: "0123", Modified: true},
	} {
		var out bytes.Buffer
		if err := printVersion(&out, info); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("no %q: %v\n%s", want, err, out.String())
		}
	}
}
