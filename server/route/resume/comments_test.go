package resume_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/route/resume"
)

// A comment changes nothing: the stream is followed, and the client gets what it would get without it, and the comment.
func TestCommentsAreFollowed(t *testing.T) {
	for name, c := range map[string]struct{ before, comment, want string }{
		"between two events":              {"", ": keep-alive\n\n", ": keep-alive\n\n"},
		"two of them":                     {"", ": a\n\n:\n\n", ": a\n\n:\n\n"},
		"with other line ends":            {"", ": ping\r\n\r\n", ": ping\r\n\r\n"},
		"in front of a line of an event":  {"", ": a\n: b\n", ""},
		"behind the line of an event":     {strings.TrimSuffix(piece("z", "[9]"), "\n"), ": a\n\n", strings.Replace(piece("z", "[9]"), "[9]", "null", 1)},
		"behind a blank line more":        {"", "\n: a\n\n", "\n: a\n\n"},
		"while an event is not yet whole": {piece("z", "[9]")[:40], piece("z", "[9]")[40:] + ": a\n\n", strings.Replace(piece("z", "[9]"), "[9]", "null", 1) + ": a\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, resumed := range []bool{false, true} {
				f := resume.New(resume.Params{})
				feed := func(s string) string {
					out, err := f.Feed([]byte(s))
					if err != nil {
						t.Fatal(err)
					}
					return string(bytes.Clone(out))
				}
				feed(first)
				if resumed {
					p, _ := f.Point()
					f.Resume(&p, nil)
				}
				got := feed(c.before) + feed(c.comment)
				if !resumed && got != c.want || resumed && strings.Count(got, ":") == 0 && c.want != "" {
					t.Errorf("the client gets %q, want %q", got, c.want)
				}
				if out := feed(piece("y", "[8]")); !strings.Contains(out, `"text":"y"`) || strings.Contains(out, "[8]") {
					t.Errorf("the next event is %q", out)
				}
				if p, ok := f.Point(); !ok || p.IDs[len(p.IDs)-1] != 8 {
					t.Errorf("Point() = %v, %v, Lost() = %q", p, ok, f.Lost())
				}
			}
		})
	}
}

// An answer that the engine aborts has no end: the event that claims it is not forwarded, and the stream can be resumed.
func TestAnAbortedAnswerCanBeResumed(t *testing.T) {
	abort := strings.Replace(piece("", "[]"), `"finish_reason":null`, `"finish_reason":"abort"`, 1)
	for _, resumed := range []bool{false, true} {
		f := resume.New(resume.Params{})
		if _, err := f.Feed([]byte(first)); err != nil {
			t.Fatal(err)
		}
		if resumed {
			p, _ := f.Point()
			f.Resume(&p, nil)
		}
		out, err := f.Feed([]byte(piece("y", "[8]") + abort + "data: [DONE]\n\n"))
		if !errors.Is(err, resume.ErrAborted) || !strings.Contains(string(out), `"text":"y"`) || strings.Contains(string(out), "abort") || strings.Contains(string(out), "DONE") {
			t.Errorf("Feed() = %q, %v; want one event and ErrAborted", out, err)
		}
		if p, ok := f.Point(); !ok || p.Answer != 2 {
			t.Errorf("Point() = %+v, %v", p, ok)
		}
		if _, ok := f.Ending(); ok {
			t.Error("the stream has an ending")
		}
	}
}
