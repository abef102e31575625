package resume_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/route/resume"
)

// said is an event of a chat stream with a text.
func said(id, text string) string {
	return fmt.Sprintf(`data: {"id":%q,"object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"content":%q},"logprobs":null,"finish_reason":null}]}`+"\n\n", id, text)
}

// fed feeds one piece, and returns what the client gets.
func fed(t *testing.T, f *resume.Follower, piece string) string {
	t.Helper()
	out, err := f.Feed([]byte(piece))
	if err != nil {
		t.Fatalf("Feed(%s) = %v", piece, err)
	}
	return string(out)
}

// What is tried with a clone leaves the stream as it is.
func TestACloneLeavesTheStreamAlone(t *testing.T) {
	f := resume.New(resume.Params{API: prompt.APIChat, Repeated: 1})
	fed(t, f, said("one", "Hel"))
	fed(t, f, said("one", "lo"))
	if !f.Movable() || f.Resumable() {
		t.Fatal("a short answer that is repeated is not movable, or resumable without a repetition")
	}
	other := f.Clone()
	other.Repeat()
	if other.Movable() {
		t.Error("an answer that was not repeated yet is movable")
	}
	if _, err := other.Feed([]byte(said("two", "Help me"))); !errors.Is(err, resume.ErrDiverged) {
		t.Errorf("another answer: %v, want %v", err, resume.ErrDiverged)
	}
	same := f.Clone()
	same.Repeat()
	if out := fed(t, same, said("two", "He")); out != "" {
		t.Errorf("the client gets %s once more", out)
	}
	if out := fed(t, same, said("two", "llo wor")); !strings.Contains(out, `"content":" wor"`) || !strings.Contains(out, `"id":"one"`) {
		t.Errorf("the client gets %s, want the rest", out)
	}
	if out := fed(t, f, said("one", " there")); out != said("one", " there") {
		t.Errorf("the client gets %s of its own replica", out)
	}
	again := f.Clone()
	again.Repeat()
	if out := fed(t, again, said("three", "Hello there")) + fed(t, again, said("three", "!")); !strings.Contains(out, `"content":"!"`) || strings.Contains(out, "there") {
		t.Errorf("the client gets %s of the third replica", out)
	}
	fed(t, f, said("one", strings.Repeat("long ", 100)))
	if f.Movable() {
		t.Error("a long answer is repeated while its client waits")
	}
}

// A tool call that begins in an event of which the client has a part keeps its id.
func TestARepeatedCallKeepsItsID(t *testing.T) {
	delta := func(members string) string {
		return `data: {"id":"two","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{` + members + `},"finish_reason":null}]}` + "\n\n"
	}
	f := resume.New(resume.Params{API: prompt.APIChat, Repeated: 1})
	fed(t, f, said("one", "Let me"))
	f.Repeat()
	out := fed(t, f, delta(`"content":"Let me see","tool_calls":[{"index":0,"id":"call-7","type":"function","function":{"name":"look","arguments":""}}]`)) +
		fed(t, f, delta(`"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]`))
	for _, want := range []string{`"content":" see"`, `"index":0,"id":"call-7","type":"function","function":{"name":"look"}`, `"arguments":"{}"`} {
		if strings.Count(out, want) != 1 {
			t.Errorf("the client gets\n%s\nwant %s once", out, want)
		}
	}
	if strings.Contains(out, "Let me") {
		t.Errorf("the client gets the beginning once more:\n%s", out)
	}
}
