package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

// checkTypes compares the values in a settings file with the types of the settings. It names line and setting of each one that
// does not fit, and no value, which may be a secret. Types that it does not know are left to the decoder.
func checkTypes(text []byte) error {
	file, err := parser.ParseBytes(text, 0)
	if err != nil || len(file.Docs) == 0 {
		return nil
	}
	return checkNode(file.Docs[0].Body, reflect.TypeFor[Config](), "")
}

func checkNode(node ast.Node, t reflect.Type, path string) error {
	if anchor, ok := node.(*ast.AnchorNode); ok {
		node = anchor.Value
	}
	switch node.(type) {
	case nil, *ast.NullNode, *ast.AliasNode, *ast.TagNode:
		return nil
	}
	switch t {
	case durationType:
		return checkDuration(node, path)
	case bytesType:
		return checkBytes(node, path)
	}
	if t.Kind() == reflect.String || reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		if _, ok := node.(ast.ScalarNode); !ok {
			return mismatch(node, path, "a string")
		}
		return nil
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return checkMapping(node, t, path)
	case reflect.Slice:
		list, ok := node.(*ast.SequenceNode)
		if !ok {
			return mismatch(node, path, "a list")
		}
		var errs []error
		for i, element := range list.Values {
			errs = append(errs, checkNode(element, t.Elem(), fmt.Sprintf("%s[%d]", path, i)))
		}
		return errors.Join(errs...)
	case reflect.Bool:
		if _, ok := node.(*ast.BoolNode); !ok {
			return mismatch(node, path, "true or false")
		}
	case reflect.Int, reflect.Int64, reflect.Uint32, reflect.Uint64:
		if _, ok := node.(*ast.IntegerNode); !ok {
			return mismatch(node, path, "an integer")
		}
	case reflect.Float64:
		if _, ok := node.(*ast.StringNode); ok {
			return mismatch(node, path, "a number")
		}
	}
	return nil
}

func checkMapping(node ast.Node, t reflect.Type, path string) error {
	values, ok := node.(ast.MapNode)
	if !ok {
		return mismatch(node, path, "a mapping")
	}
	var errs []error
	for entries := values.MapRange(); entries.Next(); {
		key, ok := entries.Key().(ast.ScalarNode)
		if !ok || entries.Key().IsMergeKey() {
			continue
		}
		name := key.GetToken().Value
		below := join(path, name)
		if t.Kind() == reflect.Map {
			errs = append(errs, checkNode(entries.Value(), t.Elem(), below))
			continue
		}
		f, known := fieldOf(t, name)
		if !known {
			errs = append(errs, unknownKey(key.GetToken().Position.Line, t, path, name))
			continue
		}
		errs = append(errs, checkNode(entries.Value(), f.Type, below))
	}
	return errors.Join(errs...)
}

// fieldOf returns the field of a struct that a key sets.
func fieldOf(t reflect.Type, key string) (reflect.StructField, bool) {
	for _, f := range settingsOf(t) {
		if tagOf(f) == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func checkDuration(node ast.Node, path string) error {
	if s, ok := node.(*ast.StringNode); ok {
		if _, err := time.ParseDuration(s.Value); err == nil {
			return nil
		}
	}
	return mismatch(node, path, "a duration such as 500ms, 30s or 5m")
}

func checkBytes(node ast.Node, path string) error {
	if s, ok := node.(ast.ScalarNode); ok {
		if err := new(quantity.Bytes).UnmarshalText([]byte(s.GetToken().Value)); err == nil {
			return nil
		}
	}
	return mismatch(node, path, quantity.Form)
}

func mismatch(node ast.Node, path, want string) error {
	return fmt.Errorf("line %d: %s: must be %s", node.GetToken().Position.Line, path, want)
}
