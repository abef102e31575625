package deploy_test

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

var update = flag.Bool("update", false, "rewrite the settings in values.schema.json")

const schemaFile = "helm/kvpilot/values.schema.json"

// TestTheSchemaKnowsTheSettings compares the part of the chart's schema that describes kvpilot's settings with the
// program. The rest of the file is written by hand.
func TestTheSchemaKnowsTheSettings(t *testing.T) {
	var schema object
	if err := json.Unmarshal(readFile(t, schemaFile), &schema); err != nil {
		t.Fatal(err)
	}
	settings := schemaOf(reflect.TypeFor[config.Config]())
	settings["description"] = "kvpilot's settings: docs/config.md."
	at(t, schema, "properties").(object)["config"] = settings
	want, err := json.MarshalIndent(schema, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	if *update {
		if err := os.WriteFile(schemaFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(readFile(t, schemaFile), want) {
		t.Errorf("%s differs from the program's settings: run make docs and commit it", schemaFile)
	}
}

// TestTheSchemaKnowsTheValues looks for each value of the chart in its schema, and the reverse.
func TestTheSchemaKnowsTheValues(t *testing.T) {
	var schema object
	if err := json.Unmarshal(readFile(t, schemaFile), &schema); err != nil {
		t.Fatal(err)
	}
	properties := at(t, schema, "properties").(object)
	values := documents(t, "values.yaml", readFile(t, "helm/kvpilot/values.yaml"))[0]
	compareKeys(t, "", values, properties)
	if schema["additionalProperties"] != false {
		t.Error("unknown values are accepted")
	}
}

func compareKeys(t *testing.T, path string, values, properties object) {
	t.Helper()
	for name := range properties {
		if _, known := values[name]; !known && path+name != "global" {
			t.Errorf("values.yaml does not show %s%s", path, name)
		}
	}
	for name, value := range values {
		property, known := properties[name].(object)
		if !known {
			t.Errorf("the schema lacks %s%s", path, name)
			continue
		}
		below, hasProperties := property["properties"].(object)
		if inner, isObject := value.(object); isObject && hasProperties && name != "config" && name != "resources" {
			compareKeys(t, path+name+".", inner, below)
		}
	}
}

// schemaOf describes a type of the settings: names as in the file, no other names, durations with their unit, bytes with or without one.
func schemaOf(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return object{"type": "string", "pattern": `^-?([0-9]*\.?[0-9]+(ns|us|µs|ms|s|m|h))+$`}
	case t == reflect.TypeFor[quantity.Bytes]():
		return object{"type": []any{"integer", "string"}, "pattern": `^[0-9]*\.?[0-9]+ ?([KkMmGgTtPpEe]i?)?[Bb]?$`}
	case reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return object{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.Struct:
		properties := object{}
		for _, f := range reflect.VisibleFields(t) {
			if name, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); name != "" && name != "-" {
				properties[name] = schemaOf(f.Type)
			}
		}
		return object{"type": []any{"object", "null"}, "additionalProperties": false, "properties": properties}
	case reflect.Map:
		return object{"type": []any{"object", "null"}, "additionalProperties": schemaOf(t.Elem())}
	case reflect.Slice:
		return object{"type": []any{"array", "null"}, "items": schemaOf(t.Elem())}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.String:
		return object{"type": []any{"string", "number"}} // YAML reads a port or a version as a number
	default:
		return object{"type": "integer"}
	}
}
