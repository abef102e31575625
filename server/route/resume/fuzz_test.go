package resume_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// FuzzFeed checks that nothing panics, whatever an engine sends, that it makes no difference how the
// bytes were cut, and that a stream can be given up at any point.
func FuzzFeed(f *testing.F) {
	f.Add([]byte(first+piece("é", "[8]")+"data: [DONE]\n\n"), uint8(3))
	f.Add([]byte(": x\n\ndata: {}\r\n"), uint8(1))
	f.Add([]byte(`data: {"error":{"code":500}}`+"\n\n"), uint8(200))
	f.Add([]byte(first+": keep-alive\n\n"+piece("é", "[8]")+":\n: a\n"+piece("x", "[9]")), uint8(5))
	f.Add([]byte(strings.Replace(first, `"finish_reason":null`, `"finish_reason":"abort"`, 1)+"data: [DONE]\n\n"), uint8(9))
	f.Add([]byte(first+piece("", "[8]")+`data: {"choices":[],"usage":{}}`+"\n\n"), uint8(7))
	f.Add([]byte("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"a\"}}\n\nevent: content_block_stop\ndata: {\"type\":\"content_block_stop\"}\n\nevent: x\n\n: y\n\n"), uint8(3))
	f.Add([]byte("event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"a\",\"created_at\":1}}\n\nevent: x.delta\ndata: {\"type\":\"x.delta\",\"delta\":\"\\ud83d\"}\n\n"), uint8(30))
	f.Add([]byte(first+piece("é", "[8]")+`data: {"choices":[],"usage":{"prompt_tokens":2}}`+"\n\ndata: [DONE]\n\n"), uint8(131))
	f.Fuzz(func(t *testing.T, b []byte, size uint8) {
		message := size > 127
		size &= 127
		run := func(size int) ([]byte, error) {
			p := resume.Params{Known: []uint32{1, 2}, Usage: size%2 == 0, Logprobs: len(b)%5 == 0}
			if bytes.HasPrefix(b, []byte("event:")) {
				p.API, p.Repeated = prompt.APIResponses, 1
			}
			if message && p.API != prompt.APIResponses {
				p.API, p.Message, p.Usage, p.Logprobs = prompt.APIChat, true, true, false
			}
			if len(b)%2 == 0 {
				p.Stops = openai.Stops{Strings: []string{"ab", "é"}, Included: len(b)%4 == 0, Least: len(b) % 3}
			}
			f := resume.New(p)
			var out []byte
			for rest := b; len(rest) > 0; {
				n := min(size, len(rest))
				got, err := f.Feed(bytes.Clone(rest[:n]))
				out = append(out, got...)
				if err != nil {
					return out, err
				}
				rest = rest[n:]
			}
			if point, ok := f.Point(); ok {
				if len(point.Tail()) > point.Answer || point.Answer > len(point.IDs) {
					t.Fatalf("%+v", point)
				}
				point.Whole("xab")
				if point.Again {
					c := f.Clone()
					c.Repeat()
					if again, err := c.Feed(bytes.Clone(b)); err == nil && f.Repeats() && bytes.Contains(again, []byte("data:")) && bytes.HasSuffix(b, []byte("\n\n")) {
						t.Fatalf("%q repeats itself, and the client gets\n%q\nonce more", b, again)
					}
				} else {
					f.Resume(&point, texts)
				}
				f.Feed(bytes.Clone(b))
			}
			f.Ending()
			return out, nil
		}
		if bytes.IndexByte(b, '\r') >= 0 { // what came before it may have been understood
			run(max(int(size), 1))
			return
		}
		one, oneErr := run(max(len(b), 1))
		many, manyErr := run(max(int(size), 1))
		if errors.Is(oneErr, resume.ErrNotTranslated) || errors.Is(manyErr, resume.ErrNotTranslated) { // nothing was for the client
			return
		}
		if !bytes.Equal(one, many) || (oneErr == nil) != (manyErr == nil) {
			t.Fatalf("%q in one piece gives\n%q, %v\nand in pieces of %d\n%q, %v", b, one, oneErr, size, many, manyErr)
		}
	})
}
