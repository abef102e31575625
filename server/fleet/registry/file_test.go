package registry

import (
	"strings"
	"testing"
)

// The log shows the errors of the file: line and key, and no text, which may hold a key.
func TestErrorsOfTheReplicaFileShowNoKey(t *testing.T) {
	f := &fileSource{in: &intake{settings: newSettings(Config{}, nil)}}
	for text, want := range map[string]string{
		"replicas:\n- url: http://a:1\n  api_key: very-secret\n  rank: 2\n":          `[4:3] unknown field "rank"; did you mean ranks?`,
		"replicas:\n- url: http://a:1\n  api_key: very-secret\n  labels: [x]\n":      "[4:11] ",
		"replicas:\n- url: http://a:1\n  api_key: [very-secret\n":                    "[3:",
		"replica:\n- url: http://a:1\n  api_key: very-secret\n":                      `unknown field "replica"; did you mean replicas?`,
		"replicas:\n- url: http://a:1\n  api_key: very-secret\n  frobnicate: true\n": `[4:3] unknown field "frobnicate"`,
	} {
		_, err := f.parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "very-secret") {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}
