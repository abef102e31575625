package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/server/kit/reload"
)

// leaf is one value of the tree, of lists and maps too.
type leaf struct {
	value any
	shown string
}

// Diff lists the settings that differ, and which of them need a restart. Objects in lists are named by their id, name or URL.
func Diff(now, next Config) []reload.Change {
	before, after := leaves(now), leaves(next)
	paths := maps.Clone(before)
	maps.Copy(paths, after)
	var list []reload.Change
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		a, b := before[path], after[path]
		if same(a, b) {
			continue
		}
		list = append(list, reload.Change{Path: path, Old: a.shown, New: b.shown, Restart: !live(&now, path)})
	}
	return list
}

// same compares two values; one that is missing is as good as an empty one.
func same(a, b leaf) bool {
	switch {
	case a.value == nil:
		return reflect.ValueOf(b.value).IsZero()
	case b.value == nil:
		return reflect.ValueOf(a.value).IsZero()
	}
	x, y := reflect.ValueOf(a.value), reflect.ValueOf(b.value)
	if x.Kind() == reflect.Slice && x.Len()+y.Len() == 0 {
		return true
	}
	return reflect.DeepEqual(a.value, b.value)
}

func leaves(c Config) map[string]leaf {
	all := map[string]leaf{}
	walk(reflect.ValueOf(&c).Elem(), "", func(path string, v reflect.Value) {
		all[path] = leaf{v.Interface(), display(v)}
	})
	return all
}

// walk visits every value below v.
func walk(v reflect.Value, path string, visit func(path string, v reflect.Value)) {
	switch {
	case scalar(addressable(v)):
		visit(path, v)
	case v.Kind() == reflect.Struct:
		for _, f := range settingsOf(v.Type()) {
			walk(v.FieldByIndex(f.Index), join(path, tagOf(f)), visit)
		}
	case v.Kind() == reflect.Map:
		for _, key := range v.MapKeys() {
			walk(v.MapIndex(key), join(path, key.String()), visit)
		}
	case v.Kind() == reflect.Slice:
		seen := map[string]bool{}
		for i := range v.Len() {
			name := nameOf(v.Index(i))
			if name == "" || seen[name] {
				name = strconv.Itoa(i)
			}
			seen[name] = true
			walk(v.Index(i), path+"["+name+"]", visit)
		}
	}
}

// addressable is v, or a copy of it that has an address.
func addressable(v reflect.Value) reflect.Value {
	if v.CanAddr() {
		return v
	}
	out := reflect.New(v.Type()).Elem()
	out.Set(v)
	return out
}

// nameOf identifies an object within its list.
func nameOf(v reflect.Value) string {
	if v.Kind() != reflect.Struct {
		return ""
	}
	names := map[string]string{}
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.String {
			names[tagOf(v.Type().Field(i))] = f.String()
		}
	}
	return cmp.Or(names["id"], names["name"], names["url"], names["service"])
}

// settingsOf lists the fields of a struct that are settings, also the fields of embedded structs.
func settingsOf(t reflect.Type) []reflect.StructField {
	return slices.DeleteFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return tagOf(f) == "" })
}

func tagOf(f reflect.StructField) string {
	tag, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	if tag == "-" {
		return ""
	}
	return tag
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// display is a value as people read it; secrets are starred by their type.
func display(v reflect.Value) string {
	if s, ok := v.Interface().(fmt.Stringer); ok {
		return s.String()
	}
	if v.Kind() == reflect.Slice {
		var words []string
		for i := range v.Len() {
			words = append(words, fmt.Sprint(v.Index(i).Interface()))
		}
		return strings.Join(words, ",")
	}
	return fmt.Sprint(v.Interface())
}

// Hash is a short digest of all settings but the secrets and a router's own ones: its name and address in the fleet.
func Hash(c Config) string {
	c.Fleet.Name, c.Fleet.Advertise = "", ""
	var text strings.Builder
	if err := Print(&text, c); err != nil {
		return "unknown"
	}
	sum := sha256.Sum256([]byte(text.String()))
	return hex.EncodeToString(sum[:6])
}

// NamedFiles digests the files that settings name to be read (those called ..._file), as they are now.
func NamedFiles(c Config) map[string]string {
	files := map[string]string{}
	walk(reflect.ValueOf(&c).Elem(), "", func(path string, v reflect.Value) {
		if !strings.HasSuffix(path, "_file") || v.Kind() != reflect.String || v.String() == "" {
			return
		}
		files[path] = digest(v.String())
	})
	return files
}

func digest(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return "unreadable"
	}
	sum := sha256.Sum256(text)
	return string(sum[:])
}
