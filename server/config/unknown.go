package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/kvpilot/kvpilot/server/kit/suggest"
)

// spelling is a way to name settings outside the file: by path or by variable.
type spelling struct {
	prefix, separator string
	of                func(path string) string
}

func paths() spelling { return spelling{"", ".", func(path string) string { return path }} }

func variables() spelling {
	return spelling{envPrefix, "_", func(path string) string {
		return envPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
	}}
}

// unknown is the error for a name that no single value belongs to. It explains the names of sections, lists and maps, and
// finds the setting that a misspelt name may stand for.
func (s spelling) unknown(name string) error {
	var known []string
	var compound error
	eachPath(reflect.TypeFor[Config](), "", func(path, kind string) {
		at := s.of(path)
		known = append(known, at)
		if at == name && kind != "" {
			compound = fmt.Errorf("%s: is a %s", name, kind)
		}
	})
	if compound != nil {
		return compound
	}
	meant := suggest.Near(name, known)
	if meant == nil {
		last := strings.TrimPrefix(name, s.prefix)
		if s.separator == "." {
			last = last[strings.LastIndex(last, ".")+1:]
		}
		meant = suggest.Under(last, s.separator, known)
	}
	return fmt.Errorf("%s: no such setting%s", name, suggest.Question(meant))
}

// eachPath calls visit with the path of each setting and section below t. kind says why a variable cannot set it; it is empty where one can.
func eachPath(t reflect.Type, path string, visit func(path, kind string)) {
	for _, f := range settingsOf(t) {
		at := join(path, tagOf(f))
		switch {
		case scalar(reflect.New(f.Type).Elem()):
			visit(at, "")
		case f.Type.Kind() == reflect.Struct:
			visit(at, "section: set one of its settings instead")
			eachPath(f.Type, at, visit)
		case f.Type.Kind() == reflect.Map:
			visit(at, "map: only the settings file can set it")
		default:
			visit(at, "list of objects: only the settings file can set it")
		}
	}
}

// unknownKey is the error for a key of the settings file in an object of the type t.
func unknownKey(line int, t reflect.Type, within, key string) error {
	var keys, all []string
	for _, f := range settingsOf(t) {
		keys = append(keys, tagOf(f))
	}
	meant := suggest.Near(key, keys)
	for i := range meant {
		meant[i] = join(within, meant[i])
	}
	if meant == nil {
		eachPath(reflect.TypeFor[Config](), "", func(path, _ string) { all = append(all, path) })
		if meant = suggest.Under(key, ".", all); slices.Contains(all, key) {
			meant = []string{key}
		}
	}
	if dot := strings.LastIndex(key, "."); dot >= 0 && slices.Contains(all, key) {
		return fmt.Errorf("line %d: %q: paths are for --set; in the file, write %s below %s", line, key, key[dot+1:], key[:dot])
	}
	return fmt.Errorf("line %d: %s: no such setting%s", line, join(within, key), suggest.Question(meant))
}
