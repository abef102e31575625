package gateway_test

import (
	"encoding/json"
	"strings"
	"testing"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

func TestAWrongFieldIsNamedWithWhatIsExpected(t *testing.T) {
	url := start(t, &services{})
	ids := strings.Repeat("7,", 600_000)
	for name, c := range map[string]struct{ path, body, field, says string }{
		"a list for a message":     {"choose", `{"prompt":"hi","token_ids":[1,2]}`, "token_ids", `must be an object with "ids", not an array`},
		"a wrong item":             {"choose", `{"token_ids":{"ids":[1,-2]}}`, "token_ids.ids[1]", `must be an integer from 0 to 4294967295, not -2`},
		"a wrong item of many":     {"choose", `{"token_ids":{"ids":[` + ids + `"x"]}}`, "token_ids.ids", `each item an integer from 0 to 4294967295`},
		"no list":                  {"choose", `{"token_ids":{"ids":7}}`, "token_ids.ids", `must be an array, each item an integer from 0 to 4294967295; it is a number`},
		"a number for a string":    {"choose", `{"model":7}`, "model", `must be a string, not 7`},
		"a string for a boolean":   {"tokenize", `{"text":"x","add_special_tokens":"yes"}`, "add_special_tokens", `must be true or false, not "yes"`},
		"in camel case":            {"tokenize", `{"text":"x","addSpecialTokens":1}`, "add_special_tokens", `must be true or false, not 1`},
		"a body that is no base64": {"tokenize", `{"body":{"json":{"prompt":"x"}}}`, "body.json", `must be a string in base64`},
		"a wrong name of a value":  {"tokenize", `{"body":{"json":"e30=","api":[]}}`, "body.api", `must be one of API_KIND_UNSPECIFIED, API_KIND_CHAT_COMPLETIONS`},
		"one too many":             {"tokenize", `{"text":"x","texts":{"texts":["x"]}}`, "texts", `cannot be combined with "text": at most one of "text", "body", "texts" may be set`},
		"an item of a message":     {"detokenize", `{"sequences":[{"ids":[1]},[2]]}`, "sequences[1]", `must be an object with "ids", not an array`},
		"an unknown prompt":        {"tokenize", `{"prompt":"hi"}`, "prompt", `is unknown, and one of "text", "body", "texts" is required`},
		"a misspelt value":         {"choose", `{"text":"x","reports":"REPORTS_EVERY"}`, "reports", `must be one of REPORTS_UNSPECIFIED`},
		"a misspelt value inside":  {"tokenize", `{"wish":1,"body":{"json":"e30=","api":"CHAT"}}`, "body.api", `not "CHAT"`},
		"a misspelt reason":        {"reservations/x:report", `{"release":{"reason":"RELEASE_REASON_CANCELLED"}}`, "release.reason", `not "RELEASE_REASON_CANCELLED"`},
		"with ids":                 {"choose", `{"token_ids":{"ids":[1,2]},"reports":"ALL"}`, "reports", `not "ALL"`},
		"no object":                {"choose", `[]`, "", "the body must be a JSON object, not an array"},
		"a string":                 {"choose", `"x"`, "", "the body must be a JSON object, not a string"},
		"a field twice":            {"choose", `{"text":"a","text":"b"}`, "", `the JSON cannot be read at line 1, column 13: duplicate field "text"`},
		"a chat as it is":          {"choose", `{"model":"m","messages":[]}`, "messages", `is unknown, and one of "`},
	} {
		t.Run(name, func(t *testing.T) {
			resp, got := call(t, "POST", url+"/kvpilot/v1/"+c.path, c.body)
			var e struct {
				Error struct{ Message, Type, Param, Code string }
			}
			if err := json.Unmarshal([]byte(got), &e); err != nil {
				t.Fatalf("no OpenAI error: %d %q", resp.StatusCode, got)
			}
			if resp.StatusCode != 400 || e.Error.Code != "invalid_body" || e.Error.Param != c.field || !strings.Contains(e.Error.Message, c.says) {
				t.Errorf("got %d %+v; want the field %q and %q", resp.StatusCode, e.Error, c.field, c.says)
			}
		})
	}
}

// A variable of the path or the query that cannot be read is named too, in no library's words.
func TestAWrongVariableIsNamedWithWhatIsExpected(t *testing.T) {
	url := start(t, &services{})
	for path, c := range map[string]struct{ field, says string }{
		"POST config/versions/abc:rollback":                  {"version", `must be an integer of at least 0, not "abc"`},
		"POST config/versions/-1:rollback":                   {"version", `must be an integer of at least 0, not "-1"`},
		"POST config/versions/99999999999999999999:rollback": {"version", `is out of range: "99999999999999999999"`},
		"GET decisions?limit=x":                              {"limit", `must be an integer of at least 0, not "x"`},
		"GET decisions?only_chosen=maybe":                    {"only_chosen", `must be true or false, not "maybe"`},
		"GET decisions?ends=END_FOO":                         {"ends", `must be one of its named values, not "END_FOO"`},
		"GET decisions?slower_than=soon":                     {"slower_than", `must be a duration in seconds, as in "90s", not "soon"`},
		"GET history?since=yesterday":                        {"since", `must be a time, as in "2030-01-31T12:00:00Z", not "yesterday"`},
	} {
		method, rest, _ := strings.Cut(path, " ")
		resp, got := call(t, method, url+"/kvpilot/v1/"+rest, "")
		var e struct {
			Error struct{ Message, Param, Code string }
		}
		if err := json.Unmarshal([]byte(got), &e); err != nil {
			t.Fatalf("no OpenAI error: %d %q", resp.StatusCode, got)
		}
		if resp.StatusCode != 400 || e.Error.Code != "invalid_body" || e.Error.Param != c.field || !strings.Contains(e.Error.Message, c.says) || strings.Contains(e.Error.Message, "strconv") {
			t.Errorf("%s: got %d %+v; want the field %q and %q", path, resp.StatusCode, e.Error, c.field, c.says)
		}
	}
}

// A line that cannot be read is answered as such, and the stream goes on with the next: what is bound to it must not end.
func TestAWrongLineOfAStreamIsTold(t *testing.T) {
	url := start(t, &services{})
	for name, c := range map[string]struct {
		body string
		want []string // of each answer
	}{
		"the first":      {"{\"sequence\":7,\"renew\":[]}\n{\"sequence\":2}", []string{`"sequence":"7"+message 1: the field \"renew\" must be an empty object, not an array`, `"sequence":"2"`}},
		"a later one":    {"{\"sequence\":1}\n{\"sequence\":\"x\"}\n{\"sequence\":3}", []string{`"sequence":"1"`, `"sequence":"0"+message 2: the field \"sequence\" must be an integer`, `"sequence":"3"`}},
		"no JSON":        {"{\"sequence\":1}\n\n{sequence}\n{\"sequence\":3}\n", []string{`"sequence":"1"`, `message 2: invalid character`, `"sequence":"3"`}},
		"rubbish behind": {"{\"sequence\":1} x y\n{\"sequence\":3}\n", []string{`"sequence":"1"`, `message 2: invalid character`, `"sequence":"3"`}},
		"the last":       {"{\"sequence\":1}\n{sequence}", []string{`"sequence":"1"`, `message 2: invalid character`}},
		"nothing else":   {"{\"sequence\":1}\n", []string{`"sequence":"1"`}},
	} {
		t.Run(name, func(t *testing.T) {
			resp, got := call(t, "POST", url+"/kvpilot/v1/reservations:track", c.body, "Content-Type", "application/x-ndjson")
			lines := strings.Split(strings.TrimSpace(got), "\n")
			if resp.StatusCode != 200 || len(lines) != len(c.want) {
				t.Fatalf("got %d %s; want %d answers", resp.StatusCode, got, len(c.want))
			}
			for i, want := range c.want {
				for part := range strings.SplitSeq(want, "+") {
					if !strings.Contains(lines[i], part) {
						t.Errorf("answer %d: %s; want %s", i, lines[i], part)
					}
				}
			}
		})
	}
}

// A line without an end is no reason to keep all of it.
func TestAnEndlessLineEndsTheStream(t *testing.T) {
	url := start(t, &services{})
	resp, got := call(t, "POST", url+"/kvpilot/v1/reservations:track", "{\"sequence\":1}\n{x"+strings.Repeat("x", 2<<20)+"\n{\"sequence\":2}\n", "Content-Type", "application/x-ndjson")
	if resp.StatusCode != 200 || !strings.Contains(got, `"sequence":"1"`) || strings.Contains(got, `"sequence":"2"`) || !strings.Contains(got, "message 2: invalid character") {
		t.Errorf("got %d %s", resp.StatusCode, got[:min(len(got), 400)])
	}
}

// A field that is ignored would change the question: a dry run would book.
func TestAnUnknownFieldIsRejected(t *testing.T) {
	asked := 0
	url := start(t, &services{choose: func(*kvpilotv1.ChooseReplicaRequest) (*kvpilotv1.ChooseReplicaResponse, error) {
		asked++
		return &kvpilotv1.ChooseReplicaResponse{}, nil
	}})
	many := strings.Repeat("7,", 1_100_000)
	for body, want := range map[string]string{
		`{"text":"hi","dry_run":true}`:                                `the field \"dry_run\" is unknown`,
		`{"text":"hi","candidates":{"alow":["r"]}}`:                   `the field \"candidates.alow\" is unknown; did you mean allow?`,
		`{"token_ids":{"ids":[1]},"wish":1}`:                          `the field \"wish\" is unknown`,
		`{"token_ids":{"ids":[` + many + `1]},"wish":1}`:              `unknown field \"wish\"`,
		`{"text":"hi","policy":{"params":{"any":1}},"sessionId":"s"}`: "",
		`{"text":"hi"}`: "", `{"model":"m"}`: "", ``: "",
	} {
		asked = 0
		resp, got := call(t, "POST", url+"/kvpilot/v1/choose", body)
		if refused := want != ""; refused != (resp.StatusCode == 400) || refused != (asked == 0) || !strings.Contains(got, want) {
			t.Errorf("%.80s: got %d %s, want %q", body, resp.StatusCode, got, want)
		}
	}
}

func FuzzMessagesWithMistakes(f *testing.F) {
	for _, seed := range []string{`{"token_ids":[1]}`, `{"body":{"json":1}}`, `{"lease":"1h"}`, `[]`, `{"a":{"b":[null]}}`, `{"text":"a","text":"b"}`} {
		f.Add(seed)
	}
	url := start(f, &services{})
	f.Fuzz(func(t *testing.T, body string) {
		if resp, got := call(t, "POST", url+"/kvpilot/v1/choose", body); resp.StatusCode != 200 && resp.StatusCode != 400 || strings.Contains(got, "proto:") {
			t.Errorf("%q: got %d %s", body, resp.StatusCode, got)
		}
	})
}

// JSON is UTF-8, with or without a byte order mark, as Python's json takes it; another encoding is named.
func TestTheEncodingOfJSON(t *testing.T) {
	for name, tc := range map[string]struct{ body, want string }{
		"a byte order mark":         {"\xEF\xBB\xBF" + `{"model":"m"}`, ""},
		"a byte order mark alone":   {"\xEF\xBB\xBF", ""},
		"UTF-16":                    {"\xFF\xFE{\x00}\x00", "the body is UTF-16, and JSON must be UTF-8"},
		"UTF-32 without its mark":   {"\x00\x00\x00{\x00\x00\x00}", "the body is UTF-32, and JSON must be UTF-8"},
		"the mark in another place": {`{"model":"m"}` + "\xEF\xBB\xBF", "invalid JSON at byte 14"},
	} {
		t.Run(name, func(t *testing.T) {
			var got *kvpilotv1.ChooseReplicaRequest
			url := start(t, &services{choose: func(in *kvpilotv1.ChooseReplicaRequest) (*kvpilotv1.ChooseReplicaResponse, error) {
				got = in
				return &kvpilotv1.ChooseReplicaResponse{}, nil
			}})
			resp, text := call(t, "POST", url+"/kvpilot/v1/choose", tc.body, "Content-Type", "application/json")
			if tc.want == "" {
				if resp.StatusCode != 200 || strings.Contains(tc.body, "model") && got.GetModel() != "m" {
					t.Errorf("%d %s: %v", resp.StatusCode, text, got)
				}
			} else if resp.StatusCode != 400 || !strings.Contains(text, tc.want) {
				t.Errorf("%d %s, want 400 and %q", resp.StatusCode, text, tc.want)
			}
		})
	}
}
