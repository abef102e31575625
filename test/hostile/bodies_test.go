package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/test/stack"
)

// fate is what may become of a body.
type fate uint8

const (
	// refused: a fault of the caller, in so many words.
	refused fate = iota
	// served: like any other.
	served
	// either: the engine may take it or not; the router does not fall over it.
	either
)

// chatWith is a chat body with more members.
func chatWith(more string) string {
	return `{"model":"sim","messages":[{"role":"user","content":"hi"}],"max_tokens":2` + more + `}`
}

func modelNamed(name string) string {
	text, err := json.Marshal(name)
	if err != nil { // of texts that are no UTF-8
		text = []byte(`"` + name + `"`)
	}
	return `{"model":` + string(text) + `,"messages":[{"role":"user","content":"x"}]}`
}

// bodies are chat bodies that no honest client sends, and some that look strange and are honest.
func bodies() map[string]struct {
	text string
	fate fate
} {
	type body = struct {
		text string
		fate fate
	}
	nested := func(depth int) string { return strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth) }
	all := map[string]body{
		"empty":                 {"", refused},
		"white space":           {" \r\n\t ", refused},
		"no JSON":               {"hello", refused},
		"null":                  {"null", refused},
		"a number":              {"5", refused},
		"an array":              {`[{"model":"sim"}]`, refused},
		"cut off":               {`{"model":"sim","messages":[{"role"`, refused},
		"two bodies":            {good + good, refused},
		"something behind it":   {good + "x", refused},
		"NUL bytes":             {"\x00\x00\x00", refused},
		"UTF-16":                {"\xff\xfe{\x00}\x00", refused},
		"a byte order mark":     {"\xef\xbb\xbf" + good, either},
		"invalid UTF-8":         {"{\"model\":\"sim\",\"messages\":[{\"role\":\"user\",\"content\":\"\xc3\x28\"}]}", refused},
		"a raw line in a text":  {"{\"model\":\"sim\",\"messages\":[{\"role\":\"user\",\"content\":\"a\nb\"}]}", refused},
		"half a surrogate":      {`{"model":"sim","messages":[{"role":"user","content":"\ud800"}],"max_tokens":2}`, either},
		"NUL in a text":         {`{"model":"sim","messages":[{"role":"user","content":"a\u0000b"}],"max_tokens":2}`, served},
		"comments":              {`{"model":"sim",/* a */"messages":[]}`, refused},
		"a comma too many":      {`{"model":"sim","messages":[],}`, refused},
		"single quotes":         {`{'model':'sim'}`, refused},
		"deep objects":          {chatWith(`,"tools":` + nested(10_000)), refused},
		"deep arrays":           {strings.Repeat("[", 100_000), refused},
		"deep and closed":       {`{"model":"sim","messages":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`, refused},
		"many members":          {chatWith(strings.Repeat(`,"a":1`, 100_000)), either},
		"model twice":           {`{"model":"nobody","messages":[{"role":"user","content":"x"}],"max_tokens":2,"model":"sim"}`, served},
		"messages twice":        {`{"model":"sim","messages":7,"messages":[{"role":"user","content":"x"}],"max_tokens":2}`, either},
		"no messages":           {`{"model":"sim"}`, refused},
		"messages is null":      {`{"model":"sim","messages":null}`, refused},
		"messages is empty":     {`{"model":"sim","messages":[]}`, either},
		"messages is a text":    {`{"model":"sim","messages":"hi"}`, refused},
		"a message is null":     {`{"model":"sim","messages":[null],"max_tokens":2}`, either},
		"content is a number":   {`{"model":"sim","messages":[{"role":"user","content":5}]}`, refused},
		"model is a number":     {`{"model":5,"messages":[{"role":"user","content":"x"}]}`, refused},
		"model is null":         {`{"model":null,"messages":[{"role":"user","content":"x"}],"max_tokens":2}`, either},
		"model is an object":    {`{"model":{"a":1},"messages":[]}`, refused},
		"no such model":         {modelNamed("nobody"), refused},
		"a model with slashes":  {modelNamed("../../etc/passwd"), refused},
		"a model in Unicode":    {modelNamed("模型\u202e🌍"), refused},
		"a very long model":     {modelNamed(strings.Repeat("m", 1<<20)), refused},
		"a model with a line":   {modelNamed("sim\r\nX-Injected: 1"), refused},
		"a model with a NUL":    {modelNamed("sim\x00"), refused},
		"stream is a text":      {chatWith(`,"stream":"perhaps"`), refused},
		"stream options, wrong": {chatWith(`,"stream_options":5`), either},
	}
	for _, number := range []string{`"max_tokens":99999999999999999999`, `"max_tokens":1e999`, `"max_tokens":-0`, `"max_tokens":18446744073709551616`, `"max_tokens":-5`, `"max_tokens":"12abc"`,
		`"n":99999999`, `"n":-1`, `"n":0`, `"priority":1e300`, `"truncate_prompt_tokens":-99999999999`, `"temperature":NaN`, `"temperature":1e-999`, `"seed":-0.0e-0`, `"seed":9223372036854775808`,
		`"top_p":` + strings.Repeat("9", 10_000), `"kv_transfer_params":[]`, `"logit_bias":{"x":1e999}`} {
		all["the number "+number[:min(len(number), 40)]] = body{chatWith("," + number), either}
	}
	return all
}

// prompts are completion bodies whose prompts are made of ids.
func prompts() map[string]string {
	return map[string]string{
		"100,000 ids":        `{"model":"sim","max_tokens":1,"prompt":[` + strings.Repeat("7,", 99_999) + `7]}`,
		"lists of ids":       `{"model":"sim","max_tokens":1,"prompt":[[1,2,3],[4,5],[]]}`,
		"lists of lists":     `{"model":"sim","max_tokens":1,"prompt":[[[1]],[[2]]]}`,
		"negative ids":       `{"model":"sim","max_tokens":1,"prompt":[-1,-2]}`,
		"ids beyond 2^32":    `{"model":"sim","max_tokens":1,"prompt":[4294967296,18446744073709551616]}`,
		"broken ids":         `{"model":"sim","max_tokens":1,"prompt":[1.5,1e3]}`,
		"ids and texts":      `{"model":"sim","max_tokens":1,"prompt":[1,"two",[3]]}`,
		"10,000 short texts": `{"model":"sim","max_tokens":1,"prompt":[` + strings.Repeat(`"a",`, 9_999) + `"a"]}`,
		"an empty list":      `{"model":"sim","max_tokens":1,"prompt":[]}`,
		"null":               `{"model":"sim","max_tokens":1,"prompt":null}`,
	}
}

// told checks that a refusal has OpenAI's shape and says something.
func told(t *testing.T, answer string) {
	t.Helper()
	var shaped struct {
		Error struct {
			Message string `json:"message"`
			Type    string `json:"type"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(answer), &shaped); err != nil || shaped.Error.Message == "" || shaped.Error.Type == "" {
		t.Errorf("the answer has not OpenAI's shape: %.500s (%v)", answer, err)
	}
	if len(answer) > 4<<10 {
		t.Errorf("the refusal repeats %d bytes", len(answer))
	}
}

func TestBodiesOverREST(t *testing.T) {
	s := start(t)
	for name, b := range bodies() {
		t.Run(name, func(t *testing.T) {
			code, answer := exchange(t, s.HTTP, post(b.text))
			switch {
			case code == http.StatusOK && b.fate != refused:
			case code >= 400 && code < 500 && b.fate != served:
				told(t, answer)
			default:
				t.Errorf("got %d %.500s", code, answer)
			}
		})
	}
	for name, text := range prompts() {
		wire := strings.Replace(post(text), "/v1/chat/completions", "/v1/completions", 1)
		code, answer := exchange(t, s.HTTP, wire)
		if code != http.StatusOK && (code < 400 || code >= 500) {
			t.Errorf("a prompt of %s: got %d %.500s", name, code, answer)
		}
	}
	alive(t, s)
}

func TestBodiesOverGRPC(t *testing.T) {
	s := start(t)
	client := dialGRPC(t, s)
	faults := []codes.Code{codes.InvalidArgument, codes.NotFound, codes.ResourceExhausted}
	for name, b := range bodies() {
		t.Run(name, func(t *testing.T) {
			stream, err := client.ChatCompletions(t.Context(), &httpbody.HttpBody{ContentType: "application/json", Data: []byte(b.text)})
			for err == nil {
				_, err = stream.Recv()
			}
			switch code := status.Code(err); {
			case errors.Is(err, io.EOF) && b.fate != refused:
			case slices.Contains(faults, code) && b.fate != served:
				if message := status.Convert(err).Message(); message == "" || len(message) > 4<<10 {
					t.Errorf("the refusal says %d bytes: %.500s", len(message), message)
				}
			default:
				t.Errorf("got %v", err)
			}
		})
	}
	for name, text := range prompts() {
		stream, err := client.Completions(t.Context(), &httpbody.HttpBody{ContentType: "application/json", Data: []byte(text)})
		for err == nil {
			_, err = stream.Recv()
		}
		if code := status.Code(err); !errors.Is(err, io.EOF) && !slices.Contains(faults, code) {
			t.Errorf("a prompt of %s: %v", name, err)
		}
	}
	alive(t, s)
}

// Metadata of a gRPC call is not better than headers are.
func TestMetadataOverGRPC(t *testing.T) {
	s := start(t)
	client := dialGRPC(t, s)
	for _, pair := range [][2]string{
		{"x-request-id", strings.Repeat("a", 5000)}, {"x-kvpilot-pin", "nobody@99999"}, {"x-kvpilot-weights", "a=NaN"}, {"x-kvpilot-policy", "none; such"},
		{"x-kvpilot-lease-ms", "-1"}, {"authorization", "Bearer " + strings.Repeat("k", 5000)}, {"content-length", "99"}, {"transfer-encoding", "chunked"},
		{"connection", "x-request-id"}, {"host", "evil"}, {"traceparent", "00-zz"}, {"x-data-parallel-rank", "99999999999"},
	} {
		ctx := metadataContext(t, pair[0], pair[1])
		stream, err := client.ChatCompletions(ctx, &httpbody.HttpBody{ContentType: "application/json", Data: []byte(good)})
		for err == nil {
			_, err = stream.Recv()
		}
		switch code := status.Code(err); {
		case errors.Is(err, io.EOF): // it was served
		case code == codes.InvalidArgument, code == codes.NotFound, code == codes.Unavailable:
		case code == codes.Internal && strings.Contains(err.Error(), "stream terminated by RST_STREAM"): // HTTP/2 forbids it
		default:
			t.Errorf("%s: %v", pair[0], err)
		}
	}
	alive(t, s)
}

func dialGRPC(t *testing.T, s *stack.Stack) kvpilotv1.InferenceServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return kvpilotv1.NewInferenceServiceClient(conn)
}

func TestContentTypes(t *testing.T) {
	s := start(t)
	for kind, want := range map[string]int{
		"application/json; charset=utf-8": 200, "APPLICATION/JSON": 200, "text/plain": 400, "application/x-www-form-urlencoded": 400,
		"multipart/form-data; boundary=x": 400, "application/json\t; x": 0, "": 400, "*/*": 400, "application/grpc": 0,
	} {
		wire := strings.Replace(post(good), "Content-Type: application/json\r\n", fmt.Sprintf("Content-Type: %s\r\n", kind), 1)
		if code, answer := exchange(t, s.HTTP, wire); code != want && (want != 0 || code >= 500) {
			t.Errorf("%q: got %d %.300s, want %d as the engine says", kind, code, answer, want)
		}
	}
	alive(t, s)
}

func metadataContext(t *testing.T, name, value string) context.Context {
	t.Helper()
	return metadata.AppendToOutgoingContext(t.Context(), name, value)
}
