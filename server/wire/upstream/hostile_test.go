package upstream

import (
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/wire/retry"
)

func TestAnswersThatCouldBeReadInTwoWaysAreRefused(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	cases := map[string]string{
		"length and chunks":          ok + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"two lengths":                ok + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
		"list of lengths":            ok + "Content-Length: 5, 5\r\n\r\nhello",
		"signed length":              ok + "Content-Length: +5\r\n\r\nhello",
		"negative length":            ok + "Content-Length: -5\r\n\r\nhello",
		"hexadecimal length":         ok + "Content-Length: 0x5\r\n\r\nhello",
		"length overflow":            ok + "Content-Length: 99999999999999999999\r\n\r\nhello",
		"empty length":               ok + "Content-Length:\r\n\r\nhello",
		"other encoding":             ok + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"encoding with a tab inside": ok + "Transfer-Encoding: chun\tked\r\n\r\n0\r\n\r\n",
		"two encodings":              ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"space before the colon":     ok + "Content-Length : 5\r\n\r\nhello",
		"folded header":              ok + "X-A: 1\r\n folded\r\nContent-Length: 5\r\n\r\nhello",
		"no colon":                   ok + "Content-Length 5\r\n\r\nhello",
		"no name":                    ok + ": 5\r\n\r\nhello",
		"NUL in a value":             ok + "X-A: a\x00b\r\nContent-Length: 5\r\n\r\nhello",
		"bare CR in a value":         ok + "X-A: a\rContent-Length: 9\r\nContent-Length: 5\r\n\r\nhello",
		"bare LF between headers":    ok + "X-A: a\nContent-Length: 9\r\nContent-Length: 5\r\n\r\nhello",
		"chunks in HTTP/1.0":         "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"HTTP/2":                     "HTTP/2 200 OK\r\n\r\n",
		"no status":                  "HTTP/1.1\r\n\r\n",
		"short status":               "HTTP/1.1 20 OK\r\n\r\n",
		"long status":                "HTTP/1.1 2000 OK\r\n\r\n",
		"switching protocols":        "HTTP/1.1 101 Switching\r\n\r\n",
		"endless interim answers":    strings.Repeat("HTTP/1.1 103 Early\r\n\r\n", 20),
		"no HTTP":                    "SSH-2.0-OpenSSH_9.9\r\n\r\n",
		"too many headers":           ok + strings.Repeat("X-A: b\r\n", 300) + "\r\n",
		"head too large":             ok + "X-A: " + strings.Repeat("b", 70_000) + "\r\n\r\n",
		"chunk size missing":         ok + "Transfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n",
		"chunk size with a sign":     ok + "Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
		"chunk size with 0x":         ok + "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
		"chunk size overflow":        ok + "Transfer-Encoding: chunked\r\n\r\n10000000000000005\r\nhello\r\n0\r\n\r\n",
		"chunk too long":             ok + "Transfer-Encoding: chunked\r\n\r\n4\r\nhello\r\n0\r\n\r\n",
		"chunk size ended by LF":     ok + "Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
		"chunk ended by LF":          ok + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n",
		"endless extension":          ok + "Transfer-Encoding: chunked\r\n\r\n5;" + strings.Repeat("a", 5000) + "\r\nhello\r\n0\r\n\r\n",
		"endless trailers":           ok + "Transfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("A: b\r\n", 5000) + "\r\n",
	}
	c := New(DefaultConfig(), Params{})
	t.Cleanup(c.transport.shut)
	for name, answer := range cases {
		t.Run(name, func(t *testing.T) {
			resp, err := c.Do(ctxFor(t), serveRaw(t, answer), post("{}"))
			if err == nil {
				_, err = resp.ReadAll(1 << 20)
				resp.Close()
			}
			if err == nil || Classify(nil, err) != retry.Malformed {
				t.Errorf("got %v (%v), want it refused", Classify(nil, err), err)
			}
		})
	}
}

func TestUnusualButProperAnswersAreRead(t *testing.T) {
	cases := map[string]struct{ answer, want string }{
		"interim answers":      {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok"},
		"no reason":            {"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", "ok"},
		"equal lengths":        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\ncontent-length: 2\r\n\r\nok", "ok"},
		"until close":          {"HTTP/1.1 200 OK\r\n\r\nok until the end", "ok until the end"},
		"HTTP/1.0":             {"HTTP/1.0 200 OK\r\n\r\nok", "ok"},
		"extension, trailers":  {"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2;a=b\r\nok\r\n0\r\nX-T: 1\r\n\r\n", "ok"},
		"upper-case size":      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n00A\r\n0123456789\r\n0\r\n\r\n", "0123456789"},
		"no content":           {"HTTP/1.1 204 No Content\r\n\r\n", ""},
		"bytes after the end":  {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", "ok"},
		"large head":           {"HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", 30_000) + "\r\nContent-Length: 2\r\n\r\nok", "ok"},
		"high bytes in values": {"HTTP/1.1 200 \xe2\x82\xac\r\nX-A: \xe2\x82\xac\r\nContent-Length: 2\r\n\r\nok", "ok"},
	}
	c := New(DefaultConfig(), Params{})
	t.Cleanup(c.transport.shut)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			target := serveRaw(t, tc.answer)
			for range 2 { // the second request must not see what the first one left
				resp, err := c.Do(ctxFor(t), target, post("{}"))
				if err != nil {
					t.Fatal(err)
				}
				got, err := resp.ReadAll(1 << 20)
				resp.Close()
				if err != nil || string(got) != tc.want {
					t.Errorf("got %q, %v; want %q", got, err, tc.want)
				}
			}
		})
	}
}
