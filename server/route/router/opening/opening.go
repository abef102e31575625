package opening

import (
	"bytes"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/wire/sse"
)

// Opening is the beginning of one answer. The zero value keeps nothing. It belongs to one goroutine.
type Opening struct {
	Shape
	// waits is set while another replica could be asked instead, and no content has come.
	waits bool
	scan  sse.Scanner
	kept  []byte
	// whole is set once the stream has said that it is complete, empty once an answer is known to be.
	whole, empty bool
	// arrival is the beginning of a stream that is decoded from another replica's cache.
	arrival arrival
}

// Shape is the form of an answer.
type Shape struct {
	API prompt.API
	// Choices is how many answers there are in one.
	Choices  int
	Streamed bool
}

// maxOpening bounds the bytes without content that are kept.
const maxOpening = 64 << 10

// Begin makes o the opening of an answer of a shape. It waits for content if another replica could be asked instead, and, with lent, for a
// first event that is no error: the stream is decoded from the cache of another replica.
func (o *Opening) Begin(s Shape, waits, lent bool) {
	*o = Opening{Shape: s, waits: waits}
	if s.Streamed && lent {
		o.arrival.begin(s.API)
	}
	if waits {
		o.scan.Reset(s.API, s.Streamed)
	}
}

// Take returns the bytes of the answer that can go to the client now that piece has come: none while there is no content.
func (o *Opening) Take(piece []byte) []byte {
	if piece = o.arrival.take(piece); piece == nil {
		return nil
	}
	switch {
	case !o.Streamed:
		o.empty = emptyObject(o.API, piece)
		if o.waits && o.empty {
			o.kept = append(o.kept, piece...)
			return nil
		}
		return piece
	case !o.waits, len(piece) == 0:
		return piece
	case len(o.kept) == 0 && plain(piece): // as nearly always
		o.waits = false
		return piece
	}
	o.kept = append(o.kept, piece...)
	o.scan.Feed(piece)
	o.whole = o.scan.Done()
	switch {
	case o.whole && !o.scan.Failed() && emptyStream(&o.scan, o.API, o.Choices, o.kept):
		o.empty = true
		return nil
	case o.whole, o.scan.Failed(), o.scan.ContentEvents() > 0, len(o.kept) > maxOpening:
		o.waits = false
		return o.kept
	}
	return nil
}

// Missing reports whether the answer, which has ended or says that it is complete, has nothing in it and was kept from the client.
func (o *Opening) Missing() bool { return o.waits && (o.empty || !o.whole) }

// Whole reports whether the stream has said that it is complete, with all of it kept or taken.
func (o *Opening) Whole() bool { return o.whole }

// Lost reports whether a stream from the cache of another replica began with an error: the cache was not read.
func (o *Opening) Lost() bool { return o.arrival.lost }

// Kept is the beginning that the client does not have. It is not changed any more once the answer is over.
func (o *Opening) Kept() []byte { return o.kept }

// Empty reports whether an answer is known to have no token in it; scan has read all that the client got of it.
func (o *Opening) Empty(scan *sse.Scanner) bool {
	if !o.Streamed {
		return o.empty
	}
	return scan.Failed() || emptyStream(scan, o.API, o.Choices, nil)
}

// plain reports whether a piece begins with an event that has an object, or with no data at all, and is not all of a stream.
func plain(piece []byte) bool {
	rest, data := bytes.CutPrefix(piece, []byte("data:"))
	if data {
		rest = bytes.TrimLeft(rest, " ")
		data = len(rest) > 0 && rest[0] == '{'
	}
	other := bytes.HasPrefix(piece, []byte("event:")) || piece[0] == ':'
	return (data || other) && !bytes.HasSuffix(bytes.TrimRight(piece[max(0, len(piece)-16):], "\r\n"), []byte("[DONE]"))
}

// emptyStream reports whether a complete stream has no token: no event with content, or one per choice of a chat, which begins it.
func emptyStream(scan *sse.Scanner, api prompt.API, choices int, all []byte) bool {
	if u, ok := scan.Usage(); ok && u.CompletionTokens > 0 {
		return false
	}
	switch {
	case scan.ContentEvents() == 0:
		return true
	case api != prompt.APIChat || scan.Finished() > 0 || scan.ContentEvents() > choices:
		return false
	}
	return !hasText(all)
}

// emptyObject reports whether an answer in one piece has nothing in it, or an empty list of choices.
func emptyObject(api prompt.API, body []byte) bool {
	if len(bytes.TrimSpace(body)) == 0 {
		return true
	}
	if api != prompt.APIChat && api != prompt.APICompletions || len(body) > maxOpening {
		return false
	}
	_, rest, found := bytes.Cut(body, []byte(`"choices"`))
	if !found {
		return false
	}
	rest = bytes.TrimLeft(rest, " \t\r\n:")
	return len(rest) > 0 && rest[0] == '[' && bytes.HasPrefix(bytes.TrimLeft(rest[1:], " \t\r\n"), []byte("]"))
}

// hasText reports whether a member that carries generated text or calls has a value that is not empty.
func hasText(b []byte) bool {
	for _, name := range [...]string{`"content"`, `"text"`, `"reasoning_content"`, `"reasoning"`, `"refusal"`, `"tool_calls"`, `"function_call"`, `"audio"`} {
		for rest := b; ; {
			_, after, found := bytes.Cut(rest, []byte(name))
			if !found {
				break
			}
			rest = after
			value := bytes.TrimLeft(after, " \t\r\n:")
			if len(value) < 2 || bytes.HasPrefix(value, []byte("null")) {
				continue
			}
			if next := bytes.TrimLeft(value[1:], " \t\r\n"); value[0] == '"' && value[1] != '"' || (value[0] == '[' || value[0] == '{') && len(next) > 0 && next[0] != ']' && next[0] != '}' {
				return true
			}
		}
	}
	return false
}
