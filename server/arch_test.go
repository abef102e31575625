package server_test

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

// rooms are the folders below server/ from the lowest to the highest. A package imports lower rooms only.
var rooms = []string{"kit", "domain", "wire", "observe", "fleet", "tokens", "choose", "peers", "route", "edge", "config"}

// within lists the imports that are allowed inside a room; the packages of a room do not know each other otherwise.
// A sub-package ("kvevents/vllm") belongs to its parent.
var within = map[string][]string{
	"kit/tlspeer":         {"kit/check"},
	"kit/memlimit":        {"kit/check", "kit/instruments", "kit/quantity"},
	"kit/ledger":          {"kit/instruments"},
	"kit/reload":          {"kit/instruments", "kit/scope"},
	"domain/replica":      {"domain/secret"},
	"domain/decision":     {"domain/kvblock", "domain/replica"},
	"domain/kvblock":      {"domain/blockhash"},
	"wire/breaker":        {"wire/retry"},
	"wire/poison":         {"wire/retry", "wire/breaker"},
	"wire/upstream":       {"wire/socket", "wire/http1", "wire/retry", "wire/breaker", "wire/pins"},
	"observe/span":        {"observe/recorder"},
	"observe/telemetry":   {"observe/exposition", "observe/recorder"},
	"observe/decisionlog": {"observe/journal"},
	"observe/audit":       {"observe/journal"},
	"tokens/openai":       {"tokens/rawjson"},
	"tokens/tokenizer":    {"tokens/rawjson"},
	"tokens/messages":     {"tokens/openai", "tokens/rawjson", "tokens/tokenizer"},
	"fleet/directory":     {"fleet/kvindex"},
	"choose/ranks":        {"choose/chooser", "choose/load", "choose/liveness"},
	"choose/chooser":      {"choose/selector", "choose/load", "choose/speed", "choose/conduct", "choose/holdqueue", "choose/liveness", "choose/programs", "choose/transfer", "choose/adapters"},
	"peers/identity":      {"peers/refusals"},
	"peers/members":       {"peers/identity", "peers/refusals"},
	"peers/link":          {"peers/identity", "peers/members", "peers/refusals"},
	"peers/fleet":         {"peers/decide", "peers/facts", "peers/forward", "peers/grants", "peers/identity", "peers/link", "peers/members", "peers/refusals", "peers/warm"},
	"peers/forward":       {"peers/identity", "peers/members"},
	"route/router":        {"route/resume", "route/quota", "route/splits", "route/standby"},
	"edge/gateway":        {"edge/guard", "edge/httpcall"},
	"edge/extproc":        {"edge/guard", "edge/httpcall"},
	"edge/grpcapi":        {"edge/guard", "edge/callers", "edge/httpcall"},
}

// genUsers may import each generated contract: the public one, the wire between routers, and vLLM's.
var genUsers = map[string][]string{
	"gen/kvpilot/v1":   {"", "domain/apierror", "peers/forward", "edge/grpcapi", "edge/gateway", "edge/admin"},
	"gen/openapi":      {"", "edge/gateway"},
	peerContract:       {"peers/decide", "peers/facts", "peers/fleet", "peers/members", "peers/link", "peers/warm", "peers/forward", "peers/grants"},
	"gen/vllm/control": {"fleet/kvevents"},
}

const peerContract = "gen/kvpilot/peer/v1"

func TestImportsPointDown(t *testing.T) {
	eachFile(t, ".", func(t *testing.T, file string, src []byte) {
		if strings.HasSuffix(file, "_test.go") {
			return // tests may join what the code may not
		}
		pkg := owner(file)
		room := roomOf(pkg)
		if pkg != "" && !slices.Contains(rooms, room) {
			t.Errorf("%s: %q is not a room of server/", file, room)
			return
		}
		for _, imp := range imports(t, file, src) {
			rest, ours := strings.CutPrefix(imp, module)
			if !ours {
				continue
			}
			if strings.HasPrefix(rest, "gen/") && !slices.Contains(genUsers[rest], pkg) {
				t.Errorf("%s imports %s: only %q may", file, imp, genUsers[rest])
			}
			if rest == "server" {
				t.Errorf("%s imports the composition root", file)
			}
			if strings.HasPrefix(rest, "sim/") {
				t.Errorf("%s imports %s: the server does not know the simulator", file, imp)
			}
			sub, inServer := strings.CutPrefix(rest, "server/")
			if !inServer || pkg == "" {
				continue
			}
			dep := owner(sub + "/x.go")
			if dep == pkg || slices.Contains(within[pkg], dep) {
				continue
			}
			if slices.Index(rooms, roomOf(dep)) >= slices.Index(rooms, room) {
				t.Errorf("%s imports %s: imports point to lower rooms only", file, dep)
			}
		}
	})
}

// The tests of a part link no whole server: all packages between the two would be compiled once more for them.
func TestTestsOfPartsLinkNoServer(t *testing.T) {
	eachFile(t, ".", func(t *testing.T, file string, src []byte) {
		if pkg := owner(file); pkg == "" || !strings.HasSuffix(file, "_test.go") {
			return
		}
		for _, imp := range imports(t, file, src) {
			if imp == module+"server" || imp == module+"test/stack" {
				t.Errorf("%s imports %s: the test belongs to test/", file, imp)
			}
		}
	})
}

// Clients and commands speak the public contract.
func TestOnlyRoutersUseTheirWire(t *testing.T) {
	for _, root := range []string{"../client", "../cmd", "../internal"} {
		eachFile(t, root, func(t *testing.T, file string, src []byte) {
			if slices.Contains(imports(t, file, src), module+peerContract) {
				t.Errorf("%s imports %s", file, peerContract)
			}
		})
	}
}

func TestTheProductDoesNotImportTheLaboratory(t *testing.T) {
	for _, root := range []string{".", "../client", "../cmd", "../internal", "../sim", "../test"} {
		eachFile(t, root, func(t *testing.T, file string, src []byte) {
			for _, imp := range imports(t, file, src) {
				if strings.HasPrefix(imp, module+"lab/") && !strings.HasPrefix(file, "../cmd/kvpilot-bench/") {
					t.Errorf("%s imports %s: only kvpilot-bench may", file, imp)
				}
			}
		})
	}
}

func TestOnlyCommandsAndConfigReadTheEnvironment(t *testing.T) {
	eachFile(t, ".", func(t *testing.T, file string, src []byte) {
		if strings.HasSuffix(file, "_test.go") || roomOf(owner(file)) == "config" {
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
	eachFile(t, ".", func(t *testing.T, file string, src []byte) {
		if bytes.Contains(src, []byte("\nfunc init()")) {
			t.Errorf("%s has an init function", file)
		}
	})
}

// The root's New is the exception: programs build the whole tree in code, too.
func TestConstructorsTrustTheirConfig(t *testing.T) {
	eachFile(t, ".", func(t *testing.T, file string, src []byte) {
		_, body, found := bytes.Cut(src, []byte("\nfunc New("))
		if !found || owner(file) == "" || strings.HasSuffix(file, "_test.go") {
			return
		}
		body, _, _ = bytes.Cut(body, []byte("\n}\n"))
		if bytes.Contains(body, []byte(".Validate()")) {
			t.Errorf("%s: New validates what server/config has validated", file)
		}
	})
}

func TestFilesStayReadable(t *testing.T) {
	for _, root := range []string{".", "../client", "../cmd", "../lab", "../sim"} {
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
	eachFile(t, ".", func(_ *testing.T, file string, _ []byte) { dirs[filepath.Dir(file)] = true })
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

// owner is the package of a room that a file belongs to ("fleet/kvevents" for fleet/kvevents/vllm/map.go), the room itself
// when the room is a package ("config"), or "" for the package server.
func owner(file string) string {
	parts := strings.Split(path.Dir(filepath.ToSlash(file)), "/")
	if parts[0] == "." {
		return ""
	}
	return strings.Join(parts[:min(len(parts), 2)], "/")
}

func roomOf(pkg string) string {
	room, _, _ := strings.Cut(pkg, "/")
	return room
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
