package gateway

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// readAlike fails unless the text, when it is read quickly, is read as protojson reads it. It returns whether it was.
func readAlike(t *testing.T, text string) (quick bool) {
	t.Helper()
	for _, m := range []proto.Message{&kvpilotv1.ChooseReplicaRequest{}, &kvpilotv1.ScoreOverlapRequest{}} {
		want := m.ProtoReflect().New().Interface()
		err := protojson.Unmarshal([]byte(text), want)
		if !readWithIDs([]byte(text), m) {
			continue
		}
		quick = true
		if err != nil || !proto.Equal(m, want) {
			t.Fatalf("%.300s:\n got %.300v\nwant %.300v, error %v", text, m, want, err)
		}
	}
	return quick
}

// messagesWithIDs says of each text whether it is read quickly.
func messagesWithIDs() map[string]bool {
	return map[string]bool{
		`{"token_ids":{"ids":[1,2,3]}}`:                                            true,
		`{"model":"m","tokenIds":{"ids":[1]},"booking":"BOOKING_NONE"}`:            true,
		` { "tokenIds" : { "ids" : [ 1 , 4294967295, 0 ] } , "model" : "a" } `:     true,
		`{"tokenIds":{"ids":[]}}`:                                                  true,
		`{"tokenIds":{"ids":[1],"later":{}}}`:                                      false,
		`{"tokenIds":{"ids":[1]},"later":{"token_ids":{"ids":[9]}}}`:               false,
		`{"tokenIds":{"ids":[1]},"text":null}`:                                     true,
		`{"text":"{\"token_ids\":{\"ids\":[1]}}"}`:                                 false,
		`{"tokenIds":{"ids":[1]},"text":"both"}`:                                   false,
		`{"tokenIds":{"ids":[1]},"token_ids":{"ids":[2]}}`:                         false,
		`{"tokenIds":{"ids":[1],"ids":[2]}}`:                                       false,
		`{"tokenIds":{"ids":[1,4294967296]}}`:                                      false,
		`{"tokenIds":{"ids":[1,-1]}}`:                                              false,
		`{"tokenIds":{"ids":[01]}}`:                                                false,
		`{"tokenIds":{"ids":[1.0,2e0]}}`:                                           false,
		`{"tokenIds":{"ids":["1",2]}}`:                                             false,
		`{"tokenIds":{"ids":[1,null]}}`:                                            false,
		`{"tokenIds":{"ids":null}}`:                                                false,
		`{"tokenIds":null}`:                                                        false,
		`{"tokenIds":{"ids":[1,]}}`:                                                false,
		`{"tokenIds":{"ids":[1 2]}}`:                                               false,
		`{"tokenIds":{"ids":[1]}`:                                                  false,
		`{"tokenIds":{"ids":[1]}} x`:                                               false,
		`{"tokenIds":{"ids":[1]},"model":5}`:                                       false,
		`{"tokenIds":{"ids":[1]},"model":"` + "\xff" + `"}`:                        false,
		`[{"tokenIds":{"ids":[1]}}]`:                                               false,
		`{"tokenIds":{"ids":{"ids":[1]}}}`:                                         false,
		`{"tokenIds":[{"ids":[1]}]}`:                                               false,
		`{"tok\u0065nIds":{"ids":[1]}}`:                                            true,
		`{"tokenIds":{"ids":[` + strings.Repeat("17,", 5000) + `4294967295]}}`:     true,
		`{"tokenIds":{"ids":[` + strings.Repeat("17,", 5000) + `4294967296]}}`:     false,
		`{"later":[` + strings.Repeat("[", 90) + `,"tokenIds":{"ids":[1]}}`:        false,
		`{"tokenIds":{"ids":[1]},"later":` + strings.Repeat("{\"a\":", 9000) + `}`: false,
		``:     false,
		`null`: false,
		`7`:    false,
	}
}

func TestMessagesWithIDsAreReadAsProtojsonDoes(t *testing.T) {
	for text, want := range messagesWithIDs() {
		if got := readAlike(t, text); got != want {
			t.Errorf("%.100s: read quickly: %t, want %t", text, got, want)
		}
	}
	m := &kvpilotv1.TokenizeRequest{}
	if readWithIDs([]byte(`{"token_ids":{"ids":[1]}}`), m) {
		t.Error("a message without ids was read for its ids")
	}
}

// A message that is read quickly must still name a mistake that protojson overlooks.
func TestAMistakeBesideIDsIsNamed(t *testing.T) {
	for text, want := range map[string]string{
		`{"token_ids":{"ids":[1,"x"]}}`:           `token_ids.ids[1]`,
		`{"token_ids":{"ids":[1]},"priority":{}}`: `priority`,
	} {
		err := codec{}.decodeWhole(&body{data: []byte(text)}, &kvpilotv1.ChooseReplicaRequest{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want something about %s", text, err, want)
		}
	}
}

func FuzzMessagesWithIDs(f *testing.F) {
	for text := range messagesWithIDs() {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) { readAlike(t, text) })
}

func BenchmarkReadIDs(b *testing.B) {
	var text strings.Builder
	text.WriteString(`{"model":"m","booking":"BOOKING_NONE","tokenIds":{"ids":[`)
	for range 8191 {
		fmt.Fprintf(&text, "%d,", rand.Uint32N(150_000))
	}
	text.WriteString("5]}}")
	data := []byte(text.String())
	b.ReportAllocs()
	for b.Loop() {
		var m kvpilotv1.ChooseReplicaRequest
		if err := (codec{}).decodeWhole(&body{data: data}, &m); err != nil || len(m.GetTokenIds().GetIds()) != 8192 {
			b.Fatal(err)
		}
	}
}
