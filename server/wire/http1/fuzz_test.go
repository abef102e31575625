package http1

import (
	"bytes"
	"io"
	"net/http/httputil"
	"strings"
	"testing"
)

// FuzzChunks checks the chunk decoder against net/http's: whatever it accepts, it must read
// as that one does, however the bytes are cut.
func FuzzChunks(f *testing.F) {
	for _, seed := range []string{"5\r\nhello\r\n0\r\n\r\n", "1\r\na\r\n2;x=y\r\nbc\r\n0\r\nT: v\r\n\r\nrest", "5\r\nhel", "\r\n", "0\r\n\r\n", "000f\r\n0123456789abcde\r\n0\r\n\r\n"} {
		f.Add([]byte(seed), uint8(3))
	}
	f.Fuzz(func(t *testing.T, wire []byte, step uint8) {
		frame := Body{kind: framingChunked}
		var body []byte
		rest := bytes.Clone(wire)
		for len(rest) > 0 && !frame.Complete() {
			piece := rest[:min(len(rest), int(step)+1)]
			n, used, err := frame.Decode(piece)
			if err != nil {
				return // stricter than net/http is fine
			}
			if !frame.Complete() && used != len(piece) {
				t.Fatalf("left %d bytes of a body that goes on", len(piece)-used)
			}
			body = append(body, piece[:n]...)
			rest = rest[used:]
		}
		want, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(wire)))
		if frame.Complete() && (err != nil || !bytes.Equal(body, want)) {
			t.Errorf("%q: got %q, want %q (%v)", wire, body, want, err)
		}
		if !frame.Complete() && !bytes.HasPrefix(want, body) && !bytes.HasPrefix(body, want) {
			t.Errorf("%q: got %q, net/http %q", wire, body, want)
		}
	})
}

func FuzzHead(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n"))
	f.Add([]byte("HTTP/1.0 404\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHead(b, func(string) bool { return false })
		if err != nil {
			return
		}
		if h.Chunked && h.Length >= 0 || h.Status < 100 || h.Status > 999 {
			t.Errorf("%q: got %+v", b, h)
		}
		for name, values := range h.Header {
			for _, v := range values {
				if !ValidName(name) || strings.ContainsAny(v, "\r\n\x00") {
					t.Errorf("%q: header %q: %q", b, name, v)
				}
			}
		}
	})
}
