package compare_test

import (
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/internal/compare"
)

const (
	first  = `data: {"id":"a","created":1,"choices":[{"index":0,"delta":{"content":"one "}}]}` + "\n\n"
	second = `data: {"id":"a","created":1,"choices":[{"index":1,"delta":{"content":"uno "}}]}` + "\n\n"
	third  = `data: {"id":"a","created":1,"choices":[{"index":0,"delta":{"content":"two"},"finish_reason":"stop"}]}` + "\n\n"
	done   = "data: [DONE]\n\n"
)

func TestAStreamIsExactButForIDsAndTimes(t *testing.T) {
	stream := first + second + third + done
	other := strings.NewReplacer(`"a"`, `"b"`, `"created":1`, `"created":20`).Replace(stream)
	if compare.Exact(stream) != compare.Exact(other) {
		t.Errorf("%s\n%s", compare.Exact(stream), compare.Exact(other))
	}
	if got, want := compare.Difference(stream, other); got != "" || want != "" {
		t.Errorf("%q, %q", got, want)
	}
	got, want := compare.Difference(strings.Replace(other, "uno", "une", 1), stream)
	if !strings.Contains(got, "une ") || !strings.Contains(want, "uno ") {
		t.Errorf("the first difference: %q, %q", got, want)
	}
	if got, want := compare.Difference(first, stream); got != "" || want == "" {
		t.Errorf("a stream that is shorter: %q, %q", got, want)
	}
}

func TestContentDoesNotDependOnTheCuts(t *testing.T) {
	stream := first + second + third + done
	joined := `data: {"choices":[{"index":0,"delta":{"content":"one two"},"finish_reason":"stop"}]}` + "\n\n" + second + done
	if compare.Content(stream) != compare.Content(joined) {
		t.Errorf("%s\nthe same, cut otherwise:\n%s", compare.Content(stream), compare.Content(joined))
	}
	for name, other := range map[string]string{
		"another text":   strings.Replace(stream, "uno", "une", 1),
		"another choice": strings.Replace(stream, `"index":1`, `"index":2`, 1),
		"another end":    strings.Replace(stream, `"stop"`, `"length"`, 1),
		"a lost event":   first + third + done,
		"an event twice": first + second + second + third + done,
		"half an event":  first + second + third[:20] + "\n\n" + done,
	} {
		if compare.Content(stream) == compare.Content(other) {
			t.Errorf("%s has the same content:\n%s", name, compare.Content(other))
		}
	}
	if compare.Content(`{"choices":[{"index":0,"text":"a"}]}`) == compare.Content(`{"choices":[{"index":0,"text":"b"}]}`) {
		t.Error("two answers in one piece have the same content")
	}
}

func TestFormsAreThoseOfTheEvents(t *testing.T) {
	stream := first + first + second + third + done
	if heard := compare.Forms(first + second + strings.Replace(third, "two", `one \"two`, 1) + done); heard != compare.Forms(stream) {
		t.Errorf("%s\nthe same, cut otherwise:\n%s", compare.Forms(stream), heard)
	}
	for name, other := range map[string]string{
		"a member more": strings.Replace(stream, `"index":1`, `"index":1,"token_ids":null`, 1),
		"another order": second + first + third + done,
		"a form more":   stream + "data: {}\n\n",
	} {
		if compare.Forms(stream) == compare.Forms(other) {
			t.Errorf("%s has the same forms:\n%s", name, compare.Forms(other))
		}
	}
}

func TestAStreamIsWholeWithItsEnd(t *testing.T) {
	for stream, want := range map[string]bool{
		first + third + done: true,
		first + third:        false,
		first + "data: {\"error\":{\"code\":500}}\n\n" + done:                       false,
		"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n":                true,
		"event: error\ndata: {\"type\":\"error\"}\n\nevent: message_stop\ndata: {}": false,
		"": false,
	} {
		if compare.IsWhole(stream) != want {
			t.Errorf("%q is whole: %v", stream, !want)
		}
	}
	if n := compare.Events(first + third + done); n != 3 {
		t.Errorf("%d events", n)
	}
}
