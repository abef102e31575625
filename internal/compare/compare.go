// Package compare compares two answers of engines to one request, as clients read them.
package compare

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// IsWhole reports whether a stream has its end, and no error.
func IsWhole(stream string) bool {
	ended := false
	for _, end := range []string{"data: [DONE]", "event: message_stop", "event: response.completed", "event: response.incomplete"} {
		ended = ended || strings.Contains(stream, end)
	}
	return ended && !strings.Contains(stream, `"error":{`) && !strings.Contains(stream, "event: error")
}

// Events counts the events of a stream.
func Events(stream string) int { return strings.Count(stream, "\n\n") }

// vague are the parts of two equal answers that are never the same: ids, times, and how much of the prompt was in a cache.
var vague = regexp.MustCompile(`"(id|item_id|call_id|tool_use_id|request_id)":"[^"]*"|"(created|created_at|completed_at)":[\d.]+|"signature":"[0-9a-f]*"|"(input_tokens|cached_tokens|cache_read_input_tokens|cache_creation_input_tokens)":\d+|,"created_cache_tokens":\d+|"content":null,`)

// Exact is an answer without ids, times, counts of cached tokens and a content that is null, which engines' parsers write before tool calls or leave out.
// Everything else is as the client has it.
func Exact(answer string) string { return vague.ReplaceAllString(answer, "") }

// Difference returns the first events in which two answers are not Exact the same; two empty strings when they are.
func Difference(got, want string) (gotEvent, wantEvent string) {
	a, b := strings.SplitAfter(Exact(got), "\n\n"), strings.SplitAfter(Exact(want), "\n\n")
	for i := range max(len(a), len(b)) {
		var one, other string
		if i < len(a) {
			one = a[i]
		}
		if i < len(b) {
			other = b[i]
		}
		if one != other {
			return strings.TrimSpace(one), strings.TrimSpace(other)
		}
	}
	return "", ""
}

// grows are the values that are longer in a stream of fewer events, and the numbers of events.
var grows = regexp.MustCompile(`"(content|text|reasoning|arguments|partial_json|thinking|delta)":"(?:[^"\\]|\\.)*"|"logprobs":\{"content":\[.*?\]\},"finish|"sequence_number":\d+`)

// Forms are the different events of a stream, in the order in which they come first, Exact and without the values that grow. Two streams with the same Forms and the
// same Content differ at most in how they are cut into events.
func Forms(stream string) string {
	var b strings.Builder
	seen := map[string]bool{}
	for event := range strings.SplitSeq(grows.ReplaceAllString(Exact(stream), ""), "\n\n") {
		if !seen[event] {
			seen[event] = true
			b.WriteString(event + "\n\n")
		}
	}
	return b.String()
}

// Content is the content of an answer, however a stream is cut into events: for each place and each member that holds a part of the
// answer, all its values.
func Content(answer string) string {
	all := content{}
	if !strings.HasPrefix(answer, "data: ") && !strings.HasPrefix(answer, "event: ") && !strings.HasPrefix(answer, ":") {
		all.read(answer)
		return all.String()
	}
	for line := range strings.Lines(answer) {
		if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: "); ok && data != "[DONE]" {
			all.read(data)
		}
	}
	return all.String()
}

// content is the values by place and member.
type content map[string]string

func (c content) read(text string) {
	var v any
	if json.Unmarshal([]byte(text), &v) != nil {
		c["no JSON"] += text
		return
	}
	c.add("", "", v)
}

// String lists the places.
func (c content) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&b, "%s: %q\n", name, c[name])
	}
	return b.String()
}

// parts are the members that hold a part of an answer, places the members that number its places.
var (
	parts = []string{
		"role", "content", "text", "reasoning", "arguments", "partial_json", "thinking", "delta", "token", "finish_reason", "stop_reason", "name", "completion_tokens", "output_tokens",
	}
	places = []string{"index", "output_index", "content_index", "summary_index"}
)

func (c content) add(place, member string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range places {
			if n, ok := v[name].(float64); ok {
				place = fmt.Sprintf("%s/%s %v", place, name, n)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			c.add(place, name, v[name])
		}
	case []any:
		for _, one := range v {
			c.add(place, member, one)
		}
	case string, float64:
		if slices.Contains(parts, member) {
			c[place+" "+member] += fmt.Sprint(v)
		}
	}
}
