package arch_test

import (
	"bytes"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/kvpilot/kvpilot/"

// layers gives each package below server/ its layer: it may import lower layers only.
// A sub-package ("kvevents/vllm") belongs to its parent and may be imported by it.
var layers = map[string]int{
	// 0: words; they may be made of each other
	"replica": 0, "kvblock": 0, "prompt": 0, "blockhash": 0, "secret": 0, "apierror": 0, "decision": 0, "span": 0,
	"zmtp": 0, "cache": 0, "labels": 0, "recorder": 0, "socket": 0, "guard": 0, "caller": 0, "journal": 0, "reload": 0, "tlspeer": 0,
	// 0: the step machine of an engine, driven by enginesim and replay
	"enginemodel": 0,
	// 1: parts; they do not know each other
	"openai": 1, "tokenizer": 1, "kvindex": 1, "kvevents": 1, "registry": 1, "load": 1,
	"enginestats": 1, "selector": 1, "admission": 1, "upstream": 1, "cluster": 1, "telemetry": 1,
	"decisionlog": 1, "inproc": 1, "speed": 1, "quota": 1, "callers": 1, "audit": 1,
	// 2: the choice, joined from the parts; the server and the trace player both use it
	"chooser": 2,
	// 2: a stream that another replica writes on
	"resume": 2,
	// 3: one request, from prompt to last byte; and the player of traces
	"router": 3, "replay": 3,
	// 4: surfaces
	"grpcapi": 4, "gateway": 4, "admin": 4,
	// 5: configuration
	"config": 5,
	// 6: the composition root is the package server itself
	"": 6,
	// beside the layers: the simulated engine knows the words and its own parts only
	"enginesim": 1,
	"arch":      0,
}

// genUsers may import the generated contract.
var genUsers = []string{"", "apierror", "grpcapi", "gateway", "admin"}

func TestImportsPointDown(t *testing.T) {
	eachFile(t, "..", func(t *testing.T, file string, src []byte) {
		if strings.HasSuffix(file, "_test.go") {
			return // tests may join what the code may not
		}
		pkg := owner(file)
		layer, known := layers[pkg]
		if !known {
			t.Errorf("%s: package %q has no row in the layer table", file, pkg)
			return
		}
		for _, imp := range imports(t, file, src) {
			rest, ours := strings.CutPrefix(imp, module)
			if !ours {
				continue
			}
			if strings.HasPrefix(rest, "gen/") && !slices.Contains(genUsers, pkg) {
				t.Errorf("%s imports %s: only %q may see the generated contract", file, imp, genUsers)
			}
			if rest == "server" {
				t.Errorf("%s imports the composition root", file)
			}
			sub, inServer := strings.CutPrefix(rest, "server/")
			if !inServer {
				continue
			}
			dep, _, _ := strings.Cut(sub, "/")
			words := layer == 0 && layers[dep] == 0 // words may be made of words
			if dep != pkg && layers[dep] >= layer && !words {
				t.Errorf("%s (layer %d) imports %s (layer %d): imports point down, never sideways", file, layer, dep, layers[dep])
			}
		}
	})
}

func TestOnlyCommandsAndConfigReadTheEnvironment(t *testing.T) {
	eachFile(t, "..", func(t *testing.T, file string, src []byte) {
		if strings.HasSuffix(file, "_test.go") || owner(file) == "config" {
			return
		}
		for _, call := range []string{"os.Getenv(", "os.LookupEnv(", "os.Environ("} {
			if bytes.Contains(src, []byte(call)) {
				t.Errorf("%s calls %s): settings come in through Config", file, call)
			}
		}
	})
}

func TestNothingHappensAtInit(t *testing.T) {
	eachFile(t, "..", func(t *testing.T, file string, src []byte) {
		if bytes.Contains(src, []byte("\nfunc init()")) {
			t.Errorf("%s has an init function", file)
		}
	})
}

func TestFilesStayReadable(t *testing.T) {
	for _, root := range []string{"..", "../../client", "../../cmd"} {
		eachFile(t, root, func(t *testing.T, file string, src []byte) {
			limit := 600
			if strings.HasSuffix(file, "_test.go") {
				limit = 1000
			}
			if n := bytes.Count(src, []byte("\n")); n > limit {
				t.Errorf("%s has %d lines, the limit is %d: split it by concept", file, n, limit)
			}
		})
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	dirs := map[string]bool{}
	eachFile(t, "..", func(_ *testing.T, file string, _ []byte) { dirs[filepath.Dir(file)] = true })
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		named := filepath.Join(dir, path.Base(filepath.ToSlash(dir))+".go")
		if !exists(filepath.Join(dir, "doc.go")) && !exists(named) {
			t.Errorf("%s has no doc.go", dir)
		}
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// owner is the first folder below server/, or "" for the package server itself.
func owner(file string) string {
	rel := filepath.ToSlash(strings.TrimPrefix(filepath.ToSlash(file), "../"))
	dir, _, nested := strings.Cut(rel, "/")
	if !nested {
		return ""
	}
	return dir
}

func imports(t *testing.T, file string, src []byte) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, src, parser.ImportsOnly)
	if err != nil {
		t.Fatalf("parse %s: %v", file, err)
	}
	var list []string
	for _, spec := range parsed.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		list = append(list, name)
	}
	return list
}

func eachFile(t *testing.T, root string, check func(*testing.T, string, []byte)) {
	t.Helper()
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(name) != ".go" {
			return err
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		check(t, name, src)
		return nil
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
}
