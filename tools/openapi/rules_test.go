package main

import (
	"encoding/json"
	"os"
	"testing"
)

// The document has the contract's rules where callers look for them: in the schemas of bodies, parameters and messages.
func TestTheDocumentHasTheRules(t *testing.T) {
	text, err := os.ReadFile("../../gen/openapi/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	body := func(path string) []string {
		return []string{"paths", path, "post", "requestBody", "content", "application/json", "schema"}
	}
	for _, c := range []struct {
		at   []string
		want string
	}{
		{append(body("/kvpilot/v1/choose"), "properties", "priority", "minimum"), "-1000"},
		{append(body("/kvpilot/v1/choose"), "properties", "priority", "maximum"), "1000"},
		{append(body("/kvpilot/v1/choose"), "properties", "model", "maxLength"), "512"},
		{append(body("/kvpilot/v1/choose"), "properties", "expected_output_tokens", "minimum"), "0"},
		{append(body("/kvpilot/v1/tokenize"), "oneOf"), `[{"required":["text"]},{"required":["body"]},{"required":["texts"]}]`},
		{append(body("/kvpilot/v1/replicas"), "properties", "replica_id", "minLength"), "1"},
		{[]string{"components", "schemas", "kvpilot.v1.TokenIds", "properties", "ids", "maxItems"}, "4194304"},
		{[]string{"components", "schemas", "kvpilot.v1.RequestBody", "properties", "json", "minLength"}, "2"},
	} {
		at := doc
		for _, name := range c.at {
			members, ok := at.(map[string]any)
			if !ok {
				break
			}
			at = members[name]
		}
		if got, err := json.Marshal(at); err != nil || string(got) != c.want {
			t.Errorf("%v is %s, want %s", c.at, got, c.want)
		}
	}
}
