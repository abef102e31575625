package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/kvpilot/kvpilot/server/kit/suggest"
)

// manyItems is the size of a list in bytes above which the item that is wrong is not looked for.
const manyItems = 1 << 20

// manyMembers is the number of values of a large message above which the wrong one is not looked for.
const manyMembers = 1 << 20

// mistake is the fault of a field of a message in JSON.
type mistake struct {
	field string // with the path to it
	what  string
}

// Error implements error. Only the text gets through the generated code; fieldOf reads it.
func (m *mistake) Error() string { return fieldPrefix + m.field + `" ` + m.what }

// readMessage is protojson with errors that name the field and its right form.
func readMessage(data []byte, m proto.Message) error {
	strict := protojson.UnmarshalOptions{}.Unmarshal(data, m)
	if strict == nil {
		return nil
	}
	proto.Reset(m)
	err := protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, m)
	if err == nil {
		return cmp.Or(unknownName(data, m.ProtoReflect()), strict)
	}
	if kind := kindOf(data); kind != anObject {
		return errors.New("the body must be a JSON object, not " + kind)
	}
	if len(data) > manyItems && bytes.Count(data, []byte{','}) > manyMembers {
		return err
	}
	if found := findMistake("", data, m.ProtoReflect().Descriptor()); found != nil {
		return found
	}
	return err
}

// unknownName returns the first unknown name of a field or of an enum's value. The default would be taken for its meaning.
func unknownName(data []byte, m protoreflect.Message) error {
	if len(data) > manyItems && bytes.Count(data, []byte{','}) > manyMembers {
		return nil
	}
	if err := misnamed(data, m); err != nil {
		return err
	}
	if found := misspelt("", data, m.Descriptor()); found != nil {
		return found
	}
	return nil
}

// misspelt finds the first field of the message, and of the messages in it, whose name or enum value is unknown.
func misspelt(at string, data []byte, md protoreflect.MessageDescriptor) *mistake {
	given := members(data)
	for _, name := range slices.Sorted(maps.Keys(given)) {
		fd := fieldNamed(md, name)
		if fd == nil {
			return &mistake{join(at, clip(name)), "is unknown" + instead(name, md.Fields())}
		}
		if fd.IsMap() || fd.Enum() == nil && (fd.Message() == nil || wellKnown(fd.Message())) {
			continue
		}
		path, items := join(at, string(fd.Name())), []json.RawMessage{given[name]}
		if fd.IsList() && json.Unmarshal(given[name], &items) != nil {
			continue // null
		}
		for i, item := range items {
			at := path
			if fd.IsList() {
				at = fmt.Sprintf("%s[%d]", path, i)
			}
			if found := misspeltIn(at, item, fd); found != nil {
				return found
			}
		}
	}
	return nil
}

func misspeltIn(at string, value []byte, fd protoreflect.FieldDescriptor) *mistake {
	if fd.Enum() == nil {
		return misspelt(at, value, fd.Message())
	}
	var name string
	if kindOf(value) != "a string" || json.Unmarshal(value, &name) != nil || fd.Enum().Values().ByName(protoreflect.Name(name)) != nil {
		return nil
	}
	return &mistake{at, fmt.Sprintf("must be %s, not %q", expected(fd), clip(name))}
}

// instead names the fields that an unknown one may mean.
func instead(name string, fields protoreflect.FieldDescriptors) string {
	known := make([]string, fields.Len())
	for i := range known {
		known[i] = string(fields.Get(i).Name())
	}
	if near := suggest.Near(name, known); len(near) > 0 {
		return suggest.Question(near)
	}
	return ""
}

// misnamed looks for an unknown field where one of several is expected and none is there.
func misnamed(data []byte, m protoreflect.Message) error {
	all := m.Descriptor().Oneofs()
	for i := range all.Len() {
		one := all.Get(i)
		if one.IsSynthetic() || m.WhichOneof(one) != nil {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(members(data))) {
			if fieldNamed(m.Descriptor(), name) == nil {
				return &mistake{clip(name), "is unknown, and one of " + names(one.Fields()) + " is required"}
			}
		}
	}
	return nil
}

// members are the fields of an object; nil when it is none.
func members(data []byte) map[string]json.RawMessage {
	var all map[string]json.RawMessage
	if json.Unmarshal(data, &all) != nil {
		return nil
	}
	return all
}

func fieldNamed(md protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if fd := md.Fields().ByJSONName(name); fd != nil {
		return fd
	}
	return md.Fields().ByTextName(name)
}

func names(fields protoreflect.FieldDescriptors) string {
	list := make([]string, fields.Len())
	for i := range list {
		list[i] = `"` + string(fields.Get(i).Name()) + `"`
	}
	return strings.Join(list, ", ")
}

// findMistake finds the first field of the message, in the contract's order, that cannot be read; nil when it is something
// else. at is the path of the message.
func findMistake(at string, data []byte, md protoreflect.MessageDescriptor) *mistake {
	if kindOf(data) != anObject {
		if at == "" {
			return nil
		}
		return &mistake{at, "must be " + expectedMessage(md) + ", not " + kindOf(data)}
	}
	given := map[protoreflect.Name]json.RawMessage{}
	for name, value := range members(data) {
		if fd := fieldNamed(md, name); fd != nil && string(value) != "null" {
			given[fd.Name()] = value
		}
	}
	for i := range md.Oneofs().Len() {
		var set []string
		fields := md.Oneofs().Get(i).Fields()
		for j := range fields.Len() {
			if _, ok := given[fields.Get(j).Name()]; ok {
				set = append(set, string(fields.Get(j).Name()))
			}
		}
		if len(set) > 1 {
			return &mistake{join(at, set[1]), fmt.Sprintf("cannot be combined with %q: at most one of %s may be set", set[0], names(fields))}
		}
	}
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		if value, ok := given[fd.Name()]; ok && !readable(fd, value) {
			return mistakeIn(join(at, string(fd.Name())), value, fd)
		}
	}
	return nil
}

func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// readable reports whether protojson can read the field's value.
func readable(fd protoreflect.FieldDescriptor, value []byte) bool {
	alone := fmt.Appendf(nil, `{%q:%s}`, fd.JSONName(), value)
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(alone, dynamicpb.NewMessage(fd.ContainingMessage())) == nil
}

// mistakeIn says what is wrong with a field that cannot be read.
func mistakeIn(at string, value []byte, fd protoreflect.FieldDescriptor) *mistake {
	switch {
	case fd.IsMap():
		return &mistake{at, "must be an object, each value " + expected(fd.MapValue())}
	case !fd.IsList():
		return mistakeInOne(at, value, fd)
	case kindOf(value) != "an array":
		return &mistake{at, "must be an array, each item " + expected(fd) + "; it is " + kindOf(value)}
	}
	var items []json.RawMessage
	if len(value) > manyItems || json.Unmarshal(value, &items) != nil {
		return &mistake{at, "must be an array, each item " + expected(fd)}
	}
	for i, item := range items {
		if !readable(fd, fmt.Appendf(nil, "[%s]", item)) {
			return mistakeInOne(fmt.Sprintf("%s[%d]", at, i), item, fd)
		}
	}
	return nil
}

func mistakeInOne(at string, value []byte, fd protoreflect.FieldDescriptor) *mistake {
	if fd.Message() != nil && !wellKnown(fd.Message()) {
		return findMistake(at, value, fd.Message())
	}
	got := kindOf(value)
	if len(value) <= 40 && got != "null" {
		got = string(value)
	}
	return &mistake{at, "must be " + expected(fd) + ", not " + got}
}

func wellKnown(md protoreflect.MessageDescriptor) bool {
	return md.FullName().Parent() == "google.protobuf"
}

// expected describes a field's value in words.
func expected(fd protoreflect.FieldDescriptor) string {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return "true or false"
	case protoreflect.EnumKind:
		values := fd.Enum().Values()
		list := make([]string, values.Len())
		for i := range list {
			list[i] = string(values.Get(i).Name())
		}
		return "one of " + strings.Join(list, ", ")
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return "an integer from -2147483648 to 2147483647"
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return "an integer"
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return "an integer from 0 to 4294967295"
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return "an integer of at least 0"
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return "a number"
	case protoreflect.StringKind:
		return "a string"
	case protoreflect.BytesKind:
		return "a string in base64"
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return expectedMessage(fd.Message())
	}
	return "something else"
}

func expectedMessage(md protoreflect.MessageDescriptor) string {
	switch md.FullName() {
	case "google.protobuf.Duration":
		return `a duration in seconds, as in "90s"`
	case "google.protobuf.Timestamp":
		return `a time, as in "2030-01-31T12:00:00Z"`
	}
	if md.Fields().Len() == 0 {
		return "an empty object"
	}
	return "an object with " + names(md.Fields())
}

const anObject = "an object"

// kindOf names the kind of a JSON value.
func kindOf(value []byte) string {
	value = bytes.TrimLeft(value, " \t\r\n")
	if len(value) == 0 {
		return "nothing"
	}
	switch value[0] {
	case '{':
		return anObject
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}
