// Package jsonform is the one JSON form of the contract's messages: REST answers, the decisions' file and the commands' -o json
// have it. Names are the contract's own, zero values are there, so that small scripts can rely on a field; absent messages and
// optional fields are left out.
package jsonform

import (
	"bytes"
	"encoding/json"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Marshal returns m as one line of JSON. It removes the white space that protojson varies from build to build.
func Marshal(m proto.Message) ([]byte, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.Grow(len(text))
	if err := json.Compact(&out, text); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
