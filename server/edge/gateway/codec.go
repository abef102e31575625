package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/protobuf/proto"

	"github.com/kvpilot/kvpilot/server/kit/jsonform"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// codec is the one marshaler: an HttpBody is the bytes of the HTTP body themselves; every other
// message is JSON as package jsonform writes it. Unknown fields are rejected: without their meaning, the answer would be to another
// question.
type codec struct{}

var (
	_ runtime.Marshaler         = codec{}
	_ runtime.Delimited         = codec{}
	_ runtime.StreamContentType = codec{}
)

func (codec) ContentType(v any) string {
	if body, ok := v.(*httpbody.HttpBody); ok && body.GetContentType() != "" {
		return body.GetContentType()
	}
	return typeJSON
}

// StreamContentType is for streams of messages: one JSON object per line.
func (codec) StreamContentType(any) string { return typeLines }

func (codec) Delimiter() []byte { return []byte{'\n'} }

func (codec) Marshal(v any) ([]byte, error) {
	switch v := v.(type) {
	case *httpbody.HttpBody:
		return v.GetData(), nil
	case proto.Message:
		return jsonform.Marshal(v)
	case map[string]any: // grpc-gateway wraps a stream's messages
		if m, ok := v["result"].(proto.Message); ok && len(v) == 1 {
			return jsonform.Marshal(m)
		}
	}
	return json.Marshal(v)
}

func (codec) Unmarshal(data []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return json.Unmarshal(data, v)
	}
	return readMessage(data, m)
}

func (c codec) NewEncoder(w io.Writer) runtime.Encoder {
	return runtime.EncoderFunc(func(v any) error {
		text, err := c.Marshal(v)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	})
}

// NewDecoder reads a request. A body that was read whole is decoded where it is.
func (c codec) NewDecoder(r io.Reader) runtime.Decoder {
	if whole, ok := r.(*body); ok {
		return runtime.DecoderFunc(func(v any) error { return c.decodeWhole(whole, v) })
	}
	bounded := &perMessage{Reader: r}
	if live, ok := r.(*liveBody); ok {
		return &lineDecoder{body: live, bounded: bounded, values: json.NewDecoder(bounded)}
	}
	values := json.NewDecoder(bounded)
	return runtime.DecoderFunc(func(v any) error {
		bounded.left = smallBody
		var value json.RawMessage
		if err := values.Decode(&value); err != nil {
			return err
		}
		return c.Unmarshal(value, v)
	})
}

func (c codec) decodeWhole(b *body, v any) error {
	b.data = rawjson.SkipMark(b.data)
	if len(bytes.TrimSpace(b.data)) == 0 {
		return io.EOF // no body is an empty message
	}
	if err := checkValues(b.data); err != nil {
		return err
	}
	if m, ok := v.(proto.Message); ok && readWithIDs(b.data, m) {
		b.data = nil // as below
		return nil
	}
	if !json.Valid(b.data) {
		return syntaxError(b.data)
	}
	err := c.Unmarshal(b.data, v)
	b.data = nil // the message takes its place in memory
	return err
}

// syntaxError says where JSON breaks.
func syntaxError(data []byte) error {
	if foreign := rawjson.ForeignEncoding(data); foreign != "" {
		return errors.New("the body is " + foreign + ", and JSON must be UTF-8")
	}
	var v any
	err := json.Unmarshal(data, &v)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		line := 1 + bytes.Count(data[:min(int(syntax.Offset), len(data))], []byte{'\n'})
		return errors.New("invalid JSON at byte " + itoa(syntax.Offset) + " (line " + itoa(int64(line)) + "): " + syntax.Error())
	}
	return errors.New("invalid JSON")
}
