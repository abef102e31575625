package httpcall_test

import (
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/edge/httpcall"
)

func TestPathsWithTwoReadingsAreRejected(t *testing.T) {
	for _, bad := range []string{
		"", "metrics", "//evil", "//evil/x", "/a//b", "/../metrics", "/a/../metrics", "/a/..", "/./metrics", "/..;x/metrics", "/a/.;/b",
		"/%6detrics", "/%2e%2e/metrics", "/a%2fb", "/a%5cb", "/a%25b", "/a%00b", "/a%0d%0ab", "/a%7fb", "/%c0%ae%c0%ae/x", "/a%3fb", "/a%23b",
		"/a%zz", "/a%2", "/a%", `/a\b`, `/\evil`, "http://evil/x", "/a b", "/a\tb", "/a\r\nX: y", "/a\x7f", "/a?b", "/a#b", "/\xff",
	} {
		if httpcall.CheckPath(bad) == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	for _, good := range []string{"/", "/metrics", "/a/", "/a/b.c/..d/e..", "/v3/new/thing-x_y~z", "/caf%C3%A9", "/a%20b", "/a;b=c", "/a:b", "/a@b+c,d"} {
		if err := httpcall.CheckPath(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
}

func TestQueriesAndIDs(t *testing.T) {
	for text, good := range map[string]bool{"": true, "a=b&c=%20": true, "a=b c": false, "a\r\nX: y": false, "a#b": false, "a\x00": false} {
		if (httpcall.CheckQuery(text) == nil) != good {
			t.Errorf("query %q", text)
		}
	}
	for text, good := range map[string]bool{"resp_1": true, "a b": true, "": false, ".": false, "..": false, "a/b": false, "../x": false, `a\b`: false, "a\n": false} {
		if (httpcall.CheckID(text) == nil) != good {
			t.Errorf("id %q", text)
		}
	}
}

// FuzzCheckPath checks that an accepted path is the same path after a server has decoded and cleaned it.
func FuzzCheckPath(f *testing.F) {
	for _, s := range []string{"/a/b", "/a%20b/", "/..;/x", "/%2e", "//", "/a;b/..", "/%c3%a9"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if httpcall.CheckPath(text) != nil {
			return
		}
		plain, err := url.PathUnescape(text)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if clean := path.Clean(plain); clean != strings.TrimSuffix(plain, "/") && clean != plain {
			t.Errorf("%q is decoded to %q and cleaned to %q", text, plain, clean)
		}
		if again, err := url.PathUnescape(plain); err != nil || again != plain {
			t.Errorf("%q is decoded to %q and then to %q", text, plain, again)
		}
		if u, err := url.ParseRequestURI(text); err != nil || u.Host != "" || u.RawQuery != "" {
			t.Errorf("%q is read as %v, %v", text, u, err)
		}
	})
}
