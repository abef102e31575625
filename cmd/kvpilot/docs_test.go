package main

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/goccy/go-yaml"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// pages are the documents whose snippets the tests below check.
func pages(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/adr/*.md", "deploy/*/*.md", "deploy/*/*/*.md"} {
		files, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			texts[file] = read(t, file)
		}
	}
	if len(texts) < 20 {
		t.Fatalf("only %d pages were found", len(texts))
	}
	return texts
}

var fence = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

// snippets returns the fenced blocks of a page in a language.
func snippets(page string, languages ...string) []string {
	var list []string
	for _, m := range fence.FindAllStringSubmatch(page, -1) {
		for _, language := range languages {
			if m[1] == language {
				list = append(list, m[2])
			}
		}
	}
	return list
}

func TestSnippetsOfTheDocumentsAreValid(t *testing.T) {
	valid := 0
	for file, page := range pages(t) {
		for _, text := range snippets(page, "json") {
			valid++
			if !json.Valid([]byte(text)) {
				t.Errorf("%s: not valid JSON:\n%s", file, text)
			}
		}
		for _, text := range snippets(page, "yaml") {
			valid++
			var any map[string]any
			if err := yaml.Unmarshal([]byte(text), &any); err != nil {
				t.Errorf("%s: not valid YAML: %v\n%s", file, err, text)
			}
			settingsExist(t, file, any, "")
		}
	}
	if valid < 5 {
		t.Errorf("only %d snippets were checked", valid)
	}
}

// settingsExist checks the keys of a YAML snippet that is part of a settings file.
func settingsExist(t *testing.T, file string, tree map[string]any, above string) {
	t.Helper()
	reference := read(t, "../../docs/config.md")
	for key, value := range tree {
		path := above + key
		if above == "" && !strings.Contains(reference, "\n## "+key+"\n") && !strings.Contains(reference, "\n- `"+key+"`") {
			continue // not a settings file: Kubernetes, Helm
		}
		nested, ok := value.(map[string]any)
		switch {
		case strings.Contains(reference, "\n- `"+path+"`"): // a list or a map below it has the reference's own forms
		case strings.Contains(reference, "# "+path+"\n") && ok:
			settingsExist(t, file, nested, path+".")
		default:
			t.Errorf("%s: there is no setting %s", file, path)
		}
	}
}

// commandLine finds kvpilot's command lines in a shell snippet.
var commandLine = regexp.MustCompile(`(?m)^\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(?:go run \./cmd/|bin/|\./)?(kvpilot (?:[a-z]|--).*)$`)

func TestCommandsOfTheDocumentsExist(t *testing.T) {
	commands, targets := 0, 0
	makefile := read(t, "../../Makefile")
	for file, page := range pages(t) {
		if strings.Contains(file, "/adr/") {
			continue // they describe what was
		}
		for _, text := range snippets(page, "", "sh") {
			text = strings.ReplaceAll(text, "\\\n", " ")
			for _, m := range commandLine.FindAllStringSubmatch(text, -1) {
				commands++
				line := regexp.MustCompile(`\s+[#|>].*$`).ReplaceAllString(m[1], "")
				if !commandExists(t, strings.ReplaceAll(line, "'", "")) {
					t.Errorf("%s: %s", file, m[1])
				}
			}
		}
		for _, target := range named(page, "`make ([a-z][a-z0-9-]*)") {
			targets++
			if !strings.Contains(makefile, "\n"+target+":") {
				t.Errorf("%s: there is no target %s in the Makefile", file, target)
			}
		}
		for _, setting := range named(page, "`((?:listen|fleet|memory|registry|router|chooser|tokenizer|kvindex|kvevents|load|enginestats|upstream|decisions|audit|api|gateway|admin|telemetry|reload)\\.[a-z_]+(?:\\.[a-z_]+)*)(?:=[^`]*|: [^`]*)?`") {
			if !settingExists(t, setting) && !strings.HasSuffix(file, "helm/kvpilot/README.md") { // it has the chart's values
				t.Errorf("%s: there is no setting %s", file, setting)
			}
		}
	}
	if commands < 10 || targets < 5 {
		t.Errorf("only %d commands and %d targets were checked", commands, targets)
	}
}

func settingExists(t *testing.T, path string) bool {
	t.Helper()
	reference := read(t, "../../docs/config.md")
	return strings.Contains(reference, "\n- `"+path+"`") || strings.Contains(reference, "# "+path+"\n") || strings.Contains(reference, "\n- `"+path+".NAME.") ||
		strings.HasSuffix(path, ".yaml") || strings.HasSuffix(path, ".go")
}

func TestLinksOfTheDocumentsLeadSomewhere(t *testing.T) {
	links := 0
	for file, page := range pages(t) {
		for _, target := range named(page, `\]\(([^)#\s]+)(?:#[^)]*)?\)`) {
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			links++
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), target)); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	if links < 50 {
		t.Errorf("only %d links were checked", links)
	}
}

var heading = regexp.MustCompile(`(?m)^#+ (.+)$`)

// anchors returns the anchors that a page sets itself and those of its headings, as GitHub names them.
func anchors(page string) map[string]bool {
	found := map[string]bool{}
	for _, name := range named(page, `<a id="([^"]+)">`) {
		found[name] = true
	}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, m[1])
		found[name] = true
	}
	return found
}

func TestAnchorsOfTheDocumentsExist(t *testing.T) {
	links, known := 0, map[string]map[string]bool{} // the anchors of each page
	link := regexp.MustCompile(`\]\(([^)#\s]*)#([^)\s]+)\)`)
	for file, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(page, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			target := file
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(file), m[1])
			}
			if known[target] == nil {
				known[target] = anchors(read(t, target))
			}
			if !known[target][m[2]] {
				t.Errorf("%s: no heading of %s has the anchor #%s", file, cmp.Or(m[1], "the page"), m[2])
			}
		}
	}
	if links < 50 {
		t.Errorf("only %d anchors were checked", links)
	}
}

// metricName finds kvpilot's own metrics, with a star for a family of them and with labels.
var metricName = regexp.MustCompile("`(kvpilot_[a-z0-9_]+)(\\*)?(?:\\{[^`]*\\})?`")

func TestMetricsOfTheDocumentsExist(t *testing.T) {
	reference := read(t, "../../docs/metrics.md")
	names := 0
	for file, page := range pages(t) {
		if strings.Contains(file, "/adr/") {
			continue // they describe what was
		}
		for _, m := range metricName.FindAllStringSubmatch(page, -1) {
			names++
			name := m[1]
			if name == "kvpilot_received" {
				continue // a field of a body
			}
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if !strings.Contains(reference, "\n- `"+name+"` (") {
					name = strings.TrimSuffix(name, suffix)
				}
			}
			end := "` ("
			if m[2] != "" {
				end = "" // a family
			}
			if name != "kvpilot_build_info" && !strings.Contains(reference, "\n- `"+name+end) {
				t.Errorf("%s: there is no metric %s", file, m[1])
			}
		}
	}
	if names < 100 {
		t.Errorf("only %d metrics were checked", names)
	}
}

func TestEveryErrorReasonHasAdvice(t *testing.T) {
	page := read(t, "../../docs/troubleshooting.md")
	for number, name := range kvpilotv1.ErrorReason_name {
		if reason := strings.TrimPrefix(name, "ERROR_REASON_"); number != 0 && !strings.Contains(page, "\n| "+reason+" | ") {
			t.Errorf("docs/troubleshooting.md has no row for %s", reason)
		}
	}
}

// namedTest finds the names of tests in a page.
var namedTest = regexp.MustCompile("`(Test[A-Z][A-Za-z0-9]+)`")

func TestTestsThatTheDocumentsNameExist(t *testing.T) {
	named := 0
	var code strings.Builder
	for _, root := range []string{"../../server", "../../test", "../../client", "../../cmd", "../../sim", "../../deploy", "../../tools", "../../lab"} {
		err := filepath.WalkDir(root, func(file string, _ os.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(file, "_test.go") {
				code.WriteString(read(t, file))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for file, page := range pages(t) {
		for _, m := range namedTest.FindAllStringSubmatch(page, -1) {
			if named++; !strings.Contains(code.String(), "\nfunc "+m[1]+"(") {
				t.Errorf("%s names %s, which does not exist", file, m[1])
			}
		}
	}
	if named < 15 {
		t.Errorf("only %d names of tests were found", named)
	}
}
