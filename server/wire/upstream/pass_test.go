package upstream

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// literals are the strings in a function of pass.go.
func literals(t *testing.T, function string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "pass.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Name.Name != function {
			continue
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			call, isCall := n.(*ast.CallExpr)
			prefix := isCall && strings.HasSuffix(exprName(call.Fun), "HasPrefix")
			if isCall && !prefix {
				return true
			}
			if prefix {
				if lit, ok := call.Args[1].(*ast.BasicLit); ok {
					text, _ := strconv.Unquote(lit.Value)
					list = append(list, text+"*")
				}
				return false
			}
			if clause, ok := n.(*ast.CaseClause); ok {
				for _, e := range clause.List {
					if lit, ok := e.(*ast.BasicLit); ok {
						text, _ := strconv.Unquote(lit.Value)
						list = append(list, text)
					}
				}
			}
			return true
		})
	}
	if len(list) == 0 {
		t.Fatalf("pass.go has no function %s with names", function)
	}
	slices.Sort(list)
	return list
}

func exprName(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		return s.Sel.Name
	}
	return ""
}

// documented are the headers in the rows of the table in docs/security.md for which keep is true.
func documented(t *testing.T, keep func(from, becomes string) bool) []string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("`([A-Z][A-Za-z0-9-]*\\*?)`")
	var list []string
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 6 || !keep(strings.TrimSpace(cells[1]), strings.TrimSpace(cells[3])) {
			continue
		}
		for _, m := range name.FindAllStringSubmatch(cells[2], -1) {
			list = append(list, m[1])
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func TestTheTableOfHeadersIsTheCode(t *testing.T) {
	fromCallers := documented(t, func(from, becomes string) bool { return from == "caller, header" })
	code := slices.DeleteFunc(literals(t, "withheld"), func(name string) bool { return name == ":*" }) // HTTP/2's own
	fromCallers = slices.DeleteFunc(fromCallers, func(name string) bool { return name == "X-Forwarded-For" })
	if !slices.Equal(code, fromCallers) {
		t.Errorf("pass.go drops of callers\n%q, docs/security.md says\n%q", code, fromCallers)
	}
	fromEngines := documented(t, func(from, becomes string) bool {
		return from == "engine, header" && !strings.HasPrefix(becomes, "dropped")
	})
	if code := literals(t, "withheldFromClient"); !slices.Equal(code, fromEngines) {
		t.Errorf("pass.go lets engines say\n%q, docs/security.md says\n%q", code, fromEngines)
	}
	for _, name := range documented(t, func(from, becomes string) bool { return from == "engine, header" && becomes == "dropped" }) {
		if !withheldFromClient(http.CanonicalHeaderKey(name)) {
			t.Errorf("%s passes, docs/security.md says that it is dropped", name)
		}
	}
}

func TestNamesWithUnderscoresAreTheSame(t *testing.T) {
	for _, name := range []string{"X_Original_Url", "x_forwarded_for", "X_http_method-override", "X_DATA_PARALLEL_RANK", "x_accel_redirect"} {
		if !withheld(http.CanonicalHeaderKey(name)) {
			t.Errorf("%s passes", name)
		}
	}
	for _, name := range []string{"session_id", "X-Session-Id", "Traceparent", "X-Vllm-Priority", "Content-Type", "Accept"} {
		if withheld(http.CanonicalHeaderKey(name)) {
			t.Errorf("%s does not pass", name)
		}
	}
}
