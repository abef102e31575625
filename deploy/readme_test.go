package deploy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

const chartReadme = "helm/kvpilot/README.md"

// The list of values is between these lines of the chart's README.
const tableBegin, tableEnd = "<!-- values: make docs writes them from values.yaml -->\n", "<!-- end of values -->\n"

// TestTheChartsReadmeListsEveryValue compares the README's list with values.yaml and its comments.
func TestTheChartsReadmeListsEveryValue(t *testing.T) {
	text := string(readFile(t, chartReadme))
	head, rest, begins := strings.Cut(text, tableBegin)
	_, tail, ends := strings.Cut(rest, tableEnd)
	if !begins || !ends {
		t.Fatalf("%s has no place for the values", chartReadme)
	}
	want := head + tableBegin + valuesList(t) + tableEnd + tail
	if *update {
		if err := os.WriteFile(chartReadme, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if text != want {
		t.Errorf("%s differs from values.yaml: run make docs and commit it", chartReadme)
	}
}

func valuesList(t *testing.T) string {
	t.Helper()
	file, err := parser.ParseBytes(readFile(t, "helm/kvpilot/values.yaml"), parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var schema object
	if err := json.Unmarshal(readFile(t, schemaFile), &schema); err != nil {
		t.Fatal(err)
	}
	var rows strings.Builder
	valueRows(t, &rows, "", file.Docs[0].Body, schema)
	return rows.String()
}

// valueRows adds a row for each value below node. A value that the schema describes as a whole, and the settings, have one row.
func valueRows(t *testing.T, rows *strings.Builder, path string, node ast.Node, schema object) {
	t.Helper()
	for _, entry := range entries(node) {
		name := entry.Key.String()
		about := comment(entry)
		properties, _ := schema["properties"].(object)
		below, _ := properties[name].(object)
		if _, parts := below["properties"]; parts && path+name != "config" && path+name != "resources" {
			if about != "" {
				fmt.Fprintf(rows, "- **%s**: %s\n", path+name, about)
			}
			valueRows(t, rows, path+name+".", entry.Value, below)
			continue
		}
		var value any
		if err := yaml.NodeToValue(entry.Value, &value); err != nil {
			t.Fatalf("%s%s: %v", path, name, err)
		}
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		if about != "" {
			about = ": " + about
		}
		fmt.Fprintf(rows, "- `%s` `%s`%s\n", path+name, text, about)
	}
}

func entries(node ast.Node) []*ast.MappingValueNode {
	switch node := node.(type) {
	case *ast.MappingNode:
		return node.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{node}
	}
	return nil
}

// comment is the text above a value, on one line.
func comment(entry *ast.MappingValueNode) string {
	group := entry.GetComment()
	if group == nil {
		return ""
	}
	var words []string
	for _, line := range group.Comments {
		words = append(words, strings.Fields(line.Token.Value)...)
	}
	return strings.Join(words, " ")
}
