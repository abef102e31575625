package sse

import "bytes"

// finder looks for a few members of the JSON that passes, wherever the pieces were cut.
//
// It searches for names with their quotes and then wants a colon. Inside a JSON string each
// quote is preceded by a backslash, so generated text is never taken for a member.
type finder struct {
	// anthropic looks for stop_reason instead of finish_reason; chat has both, stop_reason with another meaning
	anthropic bool

	tail    [needleMax - 1]byte // the last bytes of the pieces before, if a name may begin there
	tailLen int
	pending needle // a name was seen, its value has not begun
	colon   bool   // the colon after it was seen

	usages  [2]*capture // the first and the last: Anthropic's format splits the usage over two events
	filling int         // 1 + the index of the object that is being filled

	finish   shortText
	finishes int // how many were seen
	// aborted: one of them was finishAbort; unfinished: one was null.
	aborted, unfinished bool

	id   shortText
	into needle // the text that is being filled
}

// shortText is a string's raw inside, cut off when it is too long.
type shortText struct {
	buf   [80]byte
	n     int
	whole bool
}

func (t *shortText) text() string {
	if !t.whole {
		return ""
	}
	return string(t.buf[:t.n])
}

// needle is a member that the finder looks for.
type needle uint8

const (
	needleNone needle = iota
	needleUsage
	needleFinish
	needleID
)

// needleMax is the length of the longest name.
const needleMax = len(`"finish_reason"`)

// usage joins the first and the last usage.
func (f *finder) usage() (Usage, bool) {
	u := Usage{PromptTokens: -1, CompletionTokens: -1, CachedTokens: -1}
	f.usages[0].read(&u)
	f.usages[1].read(&u)
	if f.anthropic {
		p := parts{rest: -1, read: -1, created: -1}
		f.usages[0].readParts(&p)
		f.usages[1].readParts(&p)
		u.PromptTokens = p.whole()
	}
	return u, f.usages[0].complete()
}

// feed looks at the next piece.
func (f *finder) feed(b []byte) {
	b = f.resume(b)
	if len(b) > 0 && f.tailLen > 0 {
		b = f.stitch(b)
	}
	for len(b) > 0 {
		at, size, kind := f.next(b)
		if kind == needleNone {
			f.remember(b)
			return
		}
		f.pending, f.colon = kind, false
		b = f.resume(b[at+size:])
	}
}

// stitch looks for a name that lies across the end of the piece before.
func (f *finder) stitch(b []byte) []byte {
	var joined [2 * needleMax]byte
	old := copy(joined[:], f.tail[:f.tailLen])
	n := old + copy(joined[old:], b[:min(len(b), needleMax-1)])
	f.tailLen = 0
	at, size, kind := f.next(joined[:n])
	switch {
	case kind != needleNone && at < old && at+size >= old:
		f.pending, f.colon = kind, false
		return f.resume(b[at+size-old:])
	case kind == needleNone && n-old == len(b): // shorter than a name: it may continue in the next piece
		f.remember(joined[:n])
		return nil
	}
	return b
}

// remember keeps the end of a piece, if a name may begin there. No name holds a newline.
func (f *finder) remember(b []byte) {
	b = b[max(0, len(b)-(needleMax-1)):]
	b = b[bytes.LastIndexByte(b, '\n')+1:]
	f.tailLen = copy(f.tail[:], b)
}

// next finds the first name in b.
func (f *finder) next(b []byte) (at, size int, kind needle) {
	at = len(b)
	if i := indexName(b, []byte(`"usage"`)); i >= 0 {
		at, size, kind = i, len(`"usage"`), needleUsage
	}
	reason := []byte(`"finish_reason"`)
	if f.anthropic {
		reason = []byte(`"stop_reason"`)
	}
	if i := indexName(b[:at], reason); i >= 0 {
		at, size, kind = i, len(reason), needleFinish
	}
	if !f.id.whole {
		if i := indexName(b[:at], []byte(`"id"`)); i >= 0 {
			at, size, kind = i, len(`"id"`), needleID
		}
	}
	return at, size, kind
}

// indexName finds a name with its quotes. It searches from the first letter on: JSON is so full of
// quotes that a search for one stops at every word.
func indexName(b, name []byte) int {
	for from := 1; from < len(b); {
		i := bytes.Index(b[from:], name[1:])
		if i < 0 {
			return -1
		}
		if b[from+i-1] == '"' {
			return from + i - 1
		}
		from += i + 1
	}
	return -1
}

// resume continues to read a value, and returns the bytes after it.
func (f *finder) resume(b []byte) []byte {
	for len(b) > 0 {
		switch {
		case f.filling > 0:
			used, over := f.usages[f.filling-1].fill(b)
			if over {
				f.filling = 0
			}
			b = b[used:]
		case f.into != needleNone:
			b = b[f.fillText(b):]
		case f.pending != needleNone:
			b = b[f.begin(b):]
		default:
			return b
		}
	}
	return b
}

// begin reads the colon after a name and the first byte of its value.
func (f *finder) begin(b []byte) int {
	for i, c := range b {
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			continue
		case c == ':' && !f.colon:
			f.colon = true
			continue
		}
		kind := f.pending
		f.pending = needleNone
		switch {
		case !f.colon:
			return i
		case kind == needleUsage && c == '{':
			f.filling = 1
			if f.usages[0].complete() {
				f.filling = 2
			}
			f.usages[f.filling-1] = f.usages[f.filling-1].emptied()
			return i
		case kind == needleFinish && c == '"':
			f.finish.n, f.finish.whole = 0, false
			f.finishes++
			f.into = kind
			return i + 1
		case kind == needleFinish && c == 'n':
			f.unfinished = true
			return i
		case kind == needleID && c == '"':
			f.id.n = 0
			f.into = kind
			return i + 1
		}
		return i
	}
	return len(b)
}

// fillText takes the bytes of a string up to its closing quote.
func (f *finder) fillText(b []byte) int {
	t := &f.finish
	if f.into == needleID {
		t = &f.id
	}
	n := bytes.IndexByte(b, '"')
	end := n
	if n < 0 {
		end = len(b)
	}
	if t.n+end > len(t.buf) { // too long to be a usage object
		t.n, f.into = 0, needleNone
		return end
	}
	t.n += copy(t.buf[t.n:], b[:end])
	if n < 0 {
		return end
	}
	t.whole = true
	f.aborted = f.aborted || f.into == needleFinish && string(t.buf[:t.n]) == finishAbort
	f.into = needleNone
	return n + 1
}
