// Command exports lists exports of packages that no other package uses: package-level names and methods.
//
//   - A package's own tests, external ones included, do not count as another package.
//   - A method that any interface of the program names counts as used.
//   - A type counts as used when a name or field that is used has it, and a constant when its type or another constant of
//     its group is used.
//
// Usage, from tools/lint: go run ./exports -C ../.. ./server/... ./sim/...
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	log.SetFlags(0)
	dir := flag.String("C", ".", "`directory` of the module")
	flag.Parse()
	found, err := unused(*dir, flag.Args())
	if err != nil {
		log.Fatal("exports: ", err)
	}
	for _, line := range found {
		fmt.Println(line)
	}
	if len(found) > 0 {
		os.Exit(1)
	}
}

// unused lists the exports of the packages that match the patterns and that no other package of the module uses.
func unused(dir string, patterns []string) ([]string, error) {
	mode := packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo
	checked, err := packages.Load(&packages.Config{Mode: packages.NeedName, Dir: dir}, patterns...)
	if err != nil {
		return nil, err
	}
	all, err := packages.Load(&packages.Config{Mode: mode, Dir: dir, Tests: true}, "./...")
	if err != nil {
		return nil, err
	}
	if packages.PrintErrors(all) > 0 {
		return nil, fmt.Errorf("%s does not compile", dir)
	}
	// A package is loaded twice when it has tests, so that objects are identified by their position.
	exports, used := map[token.Position]types.Object{}, map[token.Position]bool{}
	for _, pkg := range all {
		if slices.ContainsFunc(checked, func(c *packages.Package) bool { return c.PkgPath == pkg.PkgPath }) && pkg.Name != "main" {
			declared(pkg, exports)
		}
		uses(pkg, used)
	}
	at := func(obj types.Object) token.Position { return all[0].Fset.Position(obj.Pos()) }
	isUsedType := func(t types.Type) bool {
		named, ok := t.(*types.Named)
		return ok && used[at(named.Obj())]
	}
	groups, usedGroups := constGroups(all), map[token.Position]bool{}
	for grown := true; grown; {
		grown = false
		for place, obj := range exports {
			if !used[place] {
				if c, ok := obj.(*types.Const); ok && (usedGroups[groups[place]] || isUsedType(c.Type())) {
					used[place], grown = true, true
				}
				continue
			}
			if group, ok := groups[place]; ok && !usedGroups[group] {
				usedGroups[group], grown = true, true
			}
			for _, t := range mentioned(obj) {
				if p := at(t); !used[p] {
					used[p], grown = true, true
				}
			}
		}
	}
	named := interfaceMethods(all)
	for _, name := range []string{"Is", "As", "Unwrap", "FlushError"} { // interfaces inside functions of errors and net/http
		named[name] = true
	}
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	var lines []string
	for place, obj := range exports {
		if f, ok := obj.(*types.Func); used[place] || ok && f.Signature().Recv() != nil && named[f.Name()] {
			continue
		}
		file, err := filepath.Rel(absolute, place.Filename)
		if err != nil {
			return nil, err
		}
		lines = append(lines, fmt.Sprintf("%s:%d: no other package uses %s", file, place.Line, obj.Name()))
	}
	slices.Sort(lines)
	return lines, nil
}

// constGroups maps each constant to the place of the declaration that it shares with others.
func constGroups(all []*packages.Package) map[token.Position]token.Position {
	groups := map[token.Position]token.Position{}
	for _, pkg := range all {
		for _, file := range pkg.Syntax {
			for _, decl := range file.Decls {
				group, ok := decl.(*ast.GenDecl)
				if !ok || group.Tok != token.CONST {
					continue
				}
				for _, spec := range group.Specs {
					for _, name := range spec.(*ast.ValueSpec).Names {
						groups[pkg.Fset.Position(name.Pos())] = pkg.Fset.Position(group.Pos())
					}
				}
			}
		}
	}
	return groups
}

// mentioned lists the named types that a user of the object sees: in its signature, its exported fields and its methods.
func mentioned(obj types.Object) []types.Object {
	var found []types.Object
	seen := map[types.Type]bool{}
	var look func(t types.Type, inside bool)
	look = func(t types.Type, inside bool) {
		if a, ok := t.(*types.Alias); ok {
			found = append(found, a.Obj())
		}
		t = types.Unalias(t)
		if seen[t] {
			return
		}
		seen[t] = true
		switch t := t.(type) {
		case *types.Named:
			found = append(found, t.Obj())
			for arg := range t.TypeArgs().Types() {
				look(arg, false)
			}
			if inside {
				look(t.Underlying(), false)
			}
		case *types.Struct:
			for f := range t.Fields() {
				if f.Exported() {
					look(f.Type(), false)
				}
			}
		case *types.Interface:
			for m := range t.Methods() {
				look(m.Signature(), false)
			}
		case *types.Signature:
			for v := range t.Params().Variables() {
				look(v.Type(), false)
			}
			for v := range t.Results().Variables() {
				look(v.Type(), false)
			}
		case *types.Map:
			look(t.Key(), false)
			look(t.Elem(), false)
		case interface{ Elem() types.Type }:
			look(t.Elem(), false)
		}
	}
	_, isType := obj.(*types.TypeName)
	look(obj.Type(), isType)
	return found
}

// declared adds the exported names of a package and the exported methods of its types, but not the names of its tests.
func declared(pkg *packages.Package, exports map[token.Position]types.Object) {
	add := func(obj types.Object) {
		at := pkg.Fset.Position(obj.Pos())
		if obj.Exported() && !strings.HasSuffix(at.Filename, "_test.go") {
			exports[at] = obj
		}
	}
	scope := pkg.Types.Scope()
	for _, name := range scope.Names() {
		obj := scope.Lookup(name)
		add(obj)
		if t, ok := types.Unalias(obj.Type()).(*types.Named); ok && obj == t.Obj() {
			for m := range t.Methods() {
				add(m)
			}
		}
	}
}

// uses marks the names of other packages that a package uses.
func uses(pkg *packages.Package, used map[token.Position]bool) {
	own := strings.TrimSuffix(pkg.PkgPath, "_test")
	for _, obj := range pkg.TypesInfo.Uses {
		if obj.Pkg() != nil && obj.Exported() && obj.Pkg().Path() != own {
			if f, ok := obj.(*types.Func); ok {
				obj = f.Origin()
			}
			used[pkg.Fset.Position(obj.Pos())] = true
		}
	}
}

// interfaceMethods are the names of the methods of all interfaces in the program.
func interfaceMethods(all []*packages.Package) map[string]bool {
	names := map[string]bool{}
	for _, pkg := range all {
		for _, tv := range pkg.TypesInfo.Types { // types without a name, too
			if it, ok := tv.Type.(*types.Interface); ok {
				for m := range it.Methods() {
					names[m.Name()] = true
				}
			}
		}
	}
	packages.Visit(all, nil, func(pkg *packages.Package) {
		scope := pkg.Types.Scope()
		for _, name := range scope.Names() {
			if it, ok := scope.Lookup(name).Type().Underlying().(*types.Interface); ok {
				for m := range it.Methods() {
					names[m.Name()] = true
				}
			}
		}
	})
	return names
}
