package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// measured is one number of one subject: of a type ("server/route/router.Router"), or of the repository ("all").
type measured struct{ kind, subject string }

// figures are the counts.
type figures map[measured]int

// most is the largest number that each kind may have without being listed.
var most = map[string]int{"fields": 20, "bools": 4, "methods": 25, "funcs": 60, "nolint": 60}

// product are the folders of the product proper; the rest is laboratory, tools and tests.
var product = []string{"server/", "client/", "cmd/kvpilot/", "cmd/internal/"}

// skipped are folders without code of this repository's own hand.
var skipped = []string{"testdata", ".git", "gen", "node_modules", "vendor"}

// measure counts the Go files below root, tests apart.
func measure(root string) (figures, error) {
	f := figures{}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains(skipped, entry.Name()):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		return f.file(name, filepath.ToSlash(rel))
	})
	return f, err
}

func (f figures) file(name, rel string) error {
	src, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(product, func(dir string) bool { return strings.HasPrefix(rel, dir) }) {
		f[measured{"lines", "product"}] += bytes.Count(src, []byte("\n"))
	}
	f[measured{"nolint", "all"}] += bytes.Count(src, []byte("//nolint"+":"))
	parsed, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	dir := path.Dir(rel)
	for _, d := range parsed.Decls {
		if method, ok := d.(*ast.FuncDecl); ok && method.Recv != nil && len(method.Recv.List) == 1 {
			f[measured{"methods", dir + "." + receiver(method.Recv.List[0].Type)}]++
		}
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.TypeSpec:
			if body, ok := n.Type.(*ast.StructType); ok {
				f.fields(dir+"."+n.Name.Name, body)
			}
		case *ast.StructType: // of a type with a name or without
			f.functions(n)
		}
		return true
	})
	return nil
}

func (f figures) fields(subject string, body *ast.StructType) {
	for _, field := range body.Fields.List {
		n := max(1, len(field.Names))
		f[measured{"fields", subject}] += n
		if kind, ok := field.Type.(*ast.Ident); ok && kind.Name == "bool" {
			f[measured{"bools", subject}] += n
		}
	}
}

func (f figures) functions(body *ast.StructType) {
	for _, field := range body.Fields.List {
		if _, ok := field.Type.(*ast.FuncType); ok {
			f[measured{"funcs", "all"}] += max(1, len(field.Names))
		}
	}
}

// receiver is the name of a method's type.
func receiver(e ast.Expr) string {
	switch t := e.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return "?"
}

// above lists the counts above their limit, in order of kind and subject.
func (f figures) above() []measured {
	var list []measured
	for m, n := range f {
		if limit, limited := most[m.kind]; limited && n > limit {
			list = append(list, m)
		}
	}
	slices.SortFunc(list, func(a, b measured) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.subject, b.subject)) })
	return list
}

func (f figures) print(w io.Writer) {
	above := map[string]int{}
	for _, m := range f.above() {
		above[m.kind]++
		fmt.Fprintf(w, "%-8s %4d  %s\n", m.kind, f[m], m.subject)
	}
	fmt.Fprintln(w)
	for _, kind := range slices.Sorted(maps.Keys(most)) {
		if n, total := f[measured{kind, "all"}]; total {
			fmt.Fprintf(w, "%s: %d, at most %d are meant\n", kind, n, most[kind])
		} else {
			fmt.Fprintf(w, "types with more than %d %s: %d\n", most[kind], kind, above[kind])
		}
	}
	fmt.Fprintf(w, "lines of the product: %d\n", f[measured{"lines", "product"}])
}
