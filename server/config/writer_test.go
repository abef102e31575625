package config

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"reflect"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

// Reference writes docs/config.md from the defaults and the field comments in the sources, which
// are read from the module's root.
func Reference(root fs.FS) (string, error) {
	r := newReference(root)
	r.line("# Settings")
	r.line("")
	r.line("Generated from the sources by `make docs`; do not edit.")
	r.line("")
	r.line("Later sources override earlier ones: the defaults below, the YAML file of `--config`, environment variables, `--set path=value` and the other flags.")
	r.line("A variable's name is the path in capitals with underscores: `listen.http` is `KVPILOT_LISTEN_HTTP`. Lists of strings are separated by commas there;")
	r.line("lists of objects and maps can only be written in the file. Unknown keys and variables are errors.")
	r.line("Durations have a unit: `500ms`, `30s`, `5m`. Numbers of bytes (`max_bytes` and others that end with `bytes`) may have one, in the file, variables and flags:")
	r.line("`512MiB` and `4Gi` are binary, `1GB` and `1G` decimal; an integer without a unit is bytes.")
	r.line("A setting's default follows its name. Settings marked *Reload* change while the router runs: [operations.md](operations.md#changing-settings) says how. The others need a restart.")
	r.line("`kvpilot serve --print-config` prints the settings in force, with secrets masked; `--check-config` only checks them.")
	r.line("[config.example.yaml](config.example.yaml) is a settings file with every setting at its default. Fields of lists and maps have no default:")
	r.line("an unset one is empty or zero, and its meaning says what that is.")
	if err := r.structure(reflect.ValueOf(Default()), nil); err != nil {
		return "", err
	}
	return r.text.String(), nil
}

type reference struct {
	root     fs.FS
	text     strings.Builder
	comments map[string]map[string]string // package path and type name, then field name
	written  map[reflect.Type]string      // where the fields of an element's type are listed
}

func newReference(root fs.FS) *reference {
	return &reference{root: root, comments: map[string]map[string]string{}, written: map[reflect.Type]string{}}
}

func (r *reference) line(format string, args ...any) { fmt.Fprintf(&r.text, format+"\n", args...) }

// structure writes the fields of a struct: single values as a table, structs below as sections.
func (r *reference) structure(v reflect.Value, names []string) error {
	docs, err := r.fieldComments(v.Type())
	if err != nil {
		return err
	}
	type nested struct {
		names []string
		doc   string
		value reflect.Value
	}
	var below []nested
	rows := 0
	for _, f := range settingsOf(v.Type()) {
		tag := tagOf(f)
		at := append(append([]string(nil), names...), tag)
		value := reflect.New(f.Type).Elem()
		value.Set(v.FieldByIndex(f.Index))
		if !scalar(value) && value.Kind() == reflect.Struct {
			below = append(below, nested{at, docs[f.Name], value})
			continue
		}
		if rows++; rows == 1 {
			r.line("")
		}
		path := strings.Join(at, ".")
		r.line("- `%s`%s: %s%s", path, spaced(shown(value)), oneLine(docs[f.Name]), onReload(path))
		if element, ok := elementStruct(f.Type); ok {
			if err := r.elements(element, strings.Join(at, ".")+pathSuffix(f.Type)); err != nil {
				return err
			}
		}
	}
	for _, n := range below {
		r.line("\n%s %s\n\n%s", strings.Repeat("#", min(4, len(n.names)+1)), strings.Join(n.names, "."), strings.TrimSpace(n.doc))
		if err := r.structure(n.value, n.names); err != nil {
			return err
		}
	}
	return nil
}

// elements writes the fields of a list's or map's objects into the same table.
func (r *reference) elements(t reflect.Type, at string) error {
	docs, err := r.fieldComments(t)
	if err != nil {
		return err
	}
	r.written[t] = at
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if tag == "" || tag == "-" {
			continue
		}
		meaning, nested := oneLine(docs[f.Name]), f.Type.Kind() == reflect.Struct && !scalar(reflect.New(f.Type).Elem())
		if before := r.written[f.Type]; nested && before != "" {
			meaning, nested = meaning+" Its fields are those of `"+before+"`.", false
		}
		r.line("- `%s.%s`: %s%s", at, tag, meaning, onReload(at))
		if nested {
			if err := r.elements(f.Type, at+"."+tag); err != nil {
				return err
			}
		}
	}
	return nil
}

// onReload marks what a reload applies.
func onReload(path string) string {
	if applies(path) {
		return " *Reload.*"
	}
	return ""
}

// spaced is text with a space before it, if there is any.
func spaced(text string) string {
	if text == "" {
		return ""
	}
	return " " + text
}

func elementStruct(t reflect.Type) (reflect.Type, bool) {
	if t.Kind() != reflect.Slice && t.Kind() != reflect.Map {
		return nil, false
	}
	return t.Elem(), t.Elem().Kind() == reflect.Struct
}

func pathSuffix(t reflect.Type) string {
	if t.Kind() == reflect.Map {
		return ".NAME"
	}
	return "[]"
}

// shown is a default as an operator would write it.
func shown(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return "`" + x.String() + "`"
	case fmt.Stringer:
		if s := x.String(); s != "" {
			return "`" + s + "`"
		}
		return ""
	}
	switch v.Kind() {
	case reflect.Slice, reflect.Map, reflect.String:
		if v.Len() == 0 {
			return ""
		}
	}
	if v.Kind() == reflect.Slice {
		return "`[" + strings.Join(strings.Fields(strings.Trim(fmt.Sprint(v.Interface()), "[]")), ", ") + "]`"
	}
	return fmt.Sprintf("`%v`", v.Interface())
}

// SampleFile writes a settings file with every setting at its default, each below its meaning.
func SampleFile(root fs.FS) (string, error) {
	r := newReference(root)
	r.line("# Every setting of kvpilot at its default; generated by `make docs`. A file needs only what differs: see docs/config.md.")
	if err := r.example(reflect.ValueOf(Default()), ""); err != nil {
		return "", err
	}
	return r.text.String(), nil
}

func (r *reference) example(v reflect.Value, indent string) error {
	docs, err := r.fieldComments(v.Type())
	if err != nil {
		return err
	}
	for _, f := range settingsOf(v.Type()) {
		tag := tagOf(f)
		value := reflect.New(f.Type).Elem()
		value.Set(v.FieldByIndex(f.Index))
		meaning := oneLine(docs[f.Name])
		if element, ok := elementStruct(f.Type); ok {
			meaning += " Fields: " + strings.Join(tags(element), ", ") + "."
		}
		r.line("")
		for _, line := range wrap(meaning, 120-len(indent)) {
			r.line("%s# %s", indent, line)
		}
		if value.Kind() == reflect.Struct && !scalar(value) {
			r.line("%s%s:", indent, tag)
			if err := r.example(value, indent+"  "); err != nil {
				return err
			}
			continue
		}
		text, err := yaml.MarshalWithOptions(value.Interface(), yaml.Flow(true))
		if err != nil {
			return fmt.Errorf("write %s: %w", tag, err)
		}
		r.line("%s%s: %s", indent, tag, strings.TrimSpace(string(text)))
	}
	return nil
}

func tags(t reflect.Type) []string {
	var list []string
	for i := range t.NumField() {
		if tag, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ","); tag != "" && tag != "-" {
			list = append(list, tag)
		}
	}
	return list
}

func wrap(text string, width int) []string {
	var lines []string
	for _, word := range strings.Fields(text) {
		if last := len(lines) - 1; last >= 0 && len(lines[last])+1+len(word) <= width {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

func oneLine(text string) string {
	return strings.Join(strings.Fields(text), " ")
}

const modulePath = "github.com/kvpilot/kvpilot/"

// fieldComments reads the comments of a struct's fields from the source of its package.
func (r *reference) fieldComments(t reflect.Type) (map[string]string, error) {
	key := t.PkgPath() + "." + t.Name()
	if r.comments[key] == nil {
		if err := r.readPackage(t.PkgPath()); err != nil {
			return nil, err
		}
	}
	docs, ok := r.comments[key]
	if !ok {
		return nil, fmt.Errorf("no source for %s", key)
	}
	for i := range t.NumField() {
		if f := t.Field(i); f.Anonymous {
			embedded, err := r.fieldComments(f.Type)
			if err != nil {
				return nil, err
			}
			maps.Copy(docs, embedded)
		}
	}
	return docs, nil
}

// readPackage collects the comments of a package.
func (r *reference) readPackage(pkg string) error {
	dir := strings.TrimPrefix(pkg, modulePath)
	files, err := fs.Glob(r.root, path.Join(dir, "*.go"))
	if err != nil {
		return fmt.Errorf("sources of %s: %w", dir, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		src, err := fs.ReadFile(r.root, file)
		if err != nil {
			return fmt.Errorf("read source: %w", err)
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("parse source: %w", err)
		}
		r.collect(pkg, parsed)
	}
	return nil
}

func (r *reference) collect(pkg string, file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		s, ok := spec.Type.(*ast.StructType)
		if !ok {
			return true
		}
		docs := map[string]string{}
		last := ""
		for _, f := range s.Fields.List {
			text := f.Doc.Text()
			if text == "" { // fields that stand together share the comment above them
				text = last
			}
			last = text
			for _, name := range f.Names {
				docs[name.Name] = forOperators(name.Name, text)
			}
		}
		r.comments[pkg+"."+spec.Name.Name] = docs
		return true
	})
}

// forOperators takes the field's Go name from the beginning of its comment: operators know the
// setting by its path.
func forOperators(name, text string) string {
	rest, begins := strings.CutPrefix(text, name+" ")
	if !begins {
		return text
	}
	for _, verb := range []string{"is ", "are "} {
		rest = strings.TrimPrefix(rest, verb)
	}
	return strings.ToUpper(rest[:1]) + rest[1:]
}
