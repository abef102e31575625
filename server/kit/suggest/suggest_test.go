package suggest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/kit/suggest"
)

func TestNear(t *testing.T) {
	known := []string{"serve", "replicas", "replica", "max_bytes", "drain", "undrain", "top", "log_level"}
	for name, want := range map[string]string{
		"srve": "serve", "Serve": "serve", "max-bytes": "max_bytes", "repilcas": "replicas", "replicaz": "replica,replicas", "log_levl": "log_level", "tpo": "", "to": "top",
		"": "", "frobnicate": "", "x": "", "unrelated": "", strings.Repeat("a", 200): "",
	} {
		if got := strings.Join(suggest.Near(name, known), ","); got != want {
			t.Errorf("Near(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestManyNamesAreNoSuggestion(t *testing.T) {
	if got := suggest.Near("ax", []string{"aa", "ab", "ac", "ad"}); got != nil {
		t.Errorf("Near = %q", got)
	}
	if got := suggest.Under("url", ".", []string{"a.url", "b.url", "c.url", "d.url"}); got != nil {
		t.Errorf("Under = %q", got)
	}
}

func TestUnder(t *testing.T) {
	if got := suggest.Under("url", ".", []string{"b.url", "a.url", "a.curl", "url"}); !slices.Equal(got, []string{"a.url", "b.url"}) {
		t.Errorf("Under = %q", got)
	}
}

func TestQuestion(t *testing.T) {
	for want, names := range map[string][]string{"": nil, "; did you mean a?": {"a"}, "; did you mean a or b?": {"a", "b"}} {
		if got := suggest.Question(names); got != want {
			t.Errorf("Question(%q) = %q", names, got)
		}
	}
}
