package secret_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/secret"
)

func TestASecretNeverShows(t *testing.T) {
	s := secret.New("hunter2")
	asJSON, err := json.Marshal(map[string]any{"key": s})
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %s", s, s, s, s), string(asJSON), s.LogValue().String()} {
		if strings.Contains(shown, "hunter2") {
			t.Errorf("secret shows in %q", shown)
		}
	}
	if s.Reveal() != "hunter2" {
		t.Errorf("Reveal() = %q, want the text", s.Reveal())
	}
}
