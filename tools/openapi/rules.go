package main

import (
	"fmt"
	"math"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/kvpilot/kvpilot/gen/kvpilot/v1" // registers the contract
)

// addRules puts the contract's rules (lengths, ranges, numbers of items, required fields) into the document: into the schemas of messages,
// and into the parameters and bodies of operations.
func addRules(paths, schemas object) error {
	for name, schema := range schemas {
		if d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name)); err == nil {
			if md, ok := d.(protoreflect.MessageDescriptor); ok {
				if err := messageRules(schema.(object), md); err != nil {
					return err
				}
			}
		}
	}
	for path, item := range paths {
		for _, op := range item.(object) {
			if err := operationRules(op.(object)); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	return nil
}

// operationRules are the rules of the operation's request.
func operationRules(op object) error {
	id, _ := op["operationId"].(string)
	service, method, _ := strings.Cut(id, "_")
	method, _, _ = strings.Cut(method, "_") // of a second route: a number
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("kvpilot.v1." + service + "." + method))
	rpc, ok := d.(protoreflect.MethodDescriptor)
	if err != nil || !ok {
		return nil
	}
	list, _ := op["parameters"].([]any)
	for _, p := range list {
		p := p.(object)
		name, _ := p["name"].(string)
		if fd := rpc.Input().Fields().ByName(protoreflect.Name(name)); fd != nil {
			if _, err := fieldRules(p["schema"].(object), fd); err != nil {
				return err
			}
		}
	}
	body, _ := op["requestBody"].(object)
	content, _ := body["content"].(object)
	for _, kind := range content {
		if schema, ok := kind.(object)["schema"].(object); ok && schema["properties"] != nil {
			if err := messageRules(schema, rpc.Input()); err != nil {
				return err
			}
		}
	}
	return nil
}

// messageRules are the rules of an object's members.
func messageRules(schema object, md protoreflect.MessageDescriptor) error {
	members, _ := schema["properties"].(object)
	var required []string
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		member, ok := members[string(fd.Name())].(object)
		if !ok {
			continue // in the path, or left out
		}
		must, err := fieldRules(member, fd)
		if err != nil {
			return err
		}
		if must {
			required = append(required, string(fd.Name()))
		}
	}
	if len(required) > 0 {
		schema["required"] = required
	}
	for i := range md.Oneofs().Len() {
		one := md.Oneofs().Get(i)
		rules, err := protovalidate.ResolveOneofRules(one)
		if err != nil || one.IsSynthetic() || !rules.GetRequired() {
			continue // no rules
		}
		var choice []any
		for j := range one.Fields().Len() {
			choice = append(choice, object{"required": []string{string(one.Fields().Get(j).Name())}})
		}
		schema["oneOf"] = choice
	}
	return nil
}

// fieldRules puts a field's rules into its schema, and reports whether the field is required.
func fieldRules(schema object, fd protoreflect.FieldDescriptor) (required bool, err error) {
	rules, err := protovalidate.ResolveFieldRules(fd)
	if err != nil {
		return false, fmt.Errorf("%s: %w", fd.FullName(), err)
	}
	if fd.Kind() == protoreflect.Uint32Kind && schema["type"] == "integer" {
		schema["minimum"], schema["maximum"] = 0, uint32(math.MaxUint32)
	}
	if list := rules.GetRepeated(); list != nil {
		bound(schema, "minItems", list.MinItems)
		bound(schema, "maxItems", list.MaxItems)
		if items, ok := schema["items"].(object); ok {
			valueRules(items, list.GetItems())
		}
	}
	if m := rules.GetMap(); m != nil {
		bound(schema, "minProperties", m.MinPairs)
		bound(schema, "maxProperties", m.MaxPairs)
	}
	valueRules(schema, rules)
	return rules.GetRequired(), nil
}

func valueRules(schema object, rules *validate.FieldRules) {
	if s := rules.GetString(); s != nil {
		bound(schema, "minLength", s.MinLen)
		bound(schema, "maxLength", s.MaxLen)
		bound(schema, "pattern", s.Pattern)
	}
	if b := rules.GetBytes(); b != nil && b.MaxLen != nil {
		schema["maxLength"] = (b.GetMaxLen() + 2) / 3 * 4 // base64
	}
	if b := rules.GetBytes(); b.GetMinLen() > 0 {
		schema["minLength"] = 2
	}
	for _, numbers := range []proto.Message{rules.GetInt32(), rules.GetUint32(), rules.GetInt64(), rules.GetUint64(), rules.GetDouble(), rules.GetFloat()} {
		numberRules(schema, numbers.ProtoReflect())
	}
}

// numberRules are the bounds of a number. 64-bit integers are strings in JSON, which have no bounds but a pattern.
func numberRules(schema object, rules protoreflect.Message) {
	if !rules.IsValid() {
		return
	}
	rules.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		keyword := map[protoreflect.Name]string{"gte": "minimum", "gt": "exclusiveMinimum", "lte": "maximum", "lt": "exclusiveMaximum"}[fd.Name()]
		switch {
		case keyword == "":
		case schema["type"] == "string" && keyword == "exclusiveMinimum" && v.String() == "0":
			schema["pattern"] = "^[1-9][0-9]*$"
		case schema["type"] != "string":
			schema[keyword] = v.Interface()
		}
		return true
	})
}

// bound sets a keyword, where the rule is there.
func bound[T any](schema object, keyword string, value *T) {
	if value != nil {
		schema[keyword] = *value
	}
}
