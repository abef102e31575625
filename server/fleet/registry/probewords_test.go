package registry

import (
	"fmt"
	"strings"
	"testing"
)

// The names that replicas give become pools and labels: they are few, short and printable.
func TestModelsOfReplicasAreBounded(t *testing.T) {
	var cards []string
	for i := range 20_000 {
		cards = append(cards, fmt.Sprintf(`{"id":"m%d"}`, i))
	}
	models, err := readModels([]byte(`{"data":[` + strings.Join(cards, ",") + `]}`))
	if err != nil || len(models) != maxModels {
		t.Errorf("%d models, %v", len(models), err)
	}
	bad := []string{`{"id":""}`, `{"id":"a\u0000b"}`, `{"id":"a\nb"}`, `{"id":"` + strings.Repeat("a", 257) + `"}`, `{"id":"r","root":"` + strings.Repeat("a", 5000) + `"}`,
		`{"id":"p","parent":"` + strings.Repeat("a", 257) + `"}`}
	models, err = readModels([]byte(`{"data":[` + strings.Join(bad, ",") + `,{"id":"good/Model-1.5 x","max_model_len":-5},{"id":"long","max_model_len":9000000000000000000}]}`))
	if err != nil || len(models) != 2 || models[0].ID != "good/Model-1.5 x" || models[0].MaxLen != 0 || models[1].MaxLen != maxContext {
		t.Errorf("%+v, %v", models, err)
	}
	if _, err := readModels([]byte(`{"data":{"id":"m"}}`)); err == nil {
		t.Error("an object passes for a list")
	}
	for text, want := range map[string]string{"0.33.0": "0.33.0", "0.14.0rc1.dev5+g1234567.d20260101": "0.14.0rc1.dev5+g1234567.d20260101", strings.Repeat("1", 65): "", "1\\n2": ""} {
		if got := readVersion([]byte(`{"version":"` + text + `"}`)); got.text != want {
			t.Errorf("version %q: %q", text, got.text)
		}
	}
}
