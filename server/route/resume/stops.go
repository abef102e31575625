package resume

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// stops is what a Follower knows of an answer that strings may end.
//
// An engine that looks for strings holds back the last characters of the text, as many as the longest string has but one, unless the
// string is part of the answer. So the client's text is that of the ids without its end, and how many characters are missing is known.
// A continuation is asked for without the strings: its text comes at once, and is searched and held back here as the engine does.
type stops struct {
	openai.Stops
	// reach is how many characters before the present one may belong to a string, lag how many of them are held back.
	reach, lag int
	// chars counts the characters that the client has, of the answer's first engine.
	chars int
	// from and next are places in the answer. From is far enough back that the text between it and the present one holds more than lag
	// characters; next takes its place as soon as the same is true of it.
	from, next place
	// texts is asked a few times when a string ends in an event of several ids. It may be nil.
	texts Texts
	// back is the text that the client does not have, in a continuation.
	back []byte
	// counted: the client gets the number of the answer's tokens.
	counted bool
	// kept is how many bytes of the client's text are enough.
	kept int
	// window and text are memory for the event in hand.
	window, text []byte
}

// place is a number of ids of the answer, and the characters of their text.
type place struct{ ids, chars int }

// proof is how many characters of the client's text must agree with what an engine decodes.
const proof = 16

func newStops(p *Params) *stops {
	s := &p.Stops
	if len(s.Strings) == 0 {
		return nil
	}
	t := &stops{Stops: *s, reach: s.Reach(), counted: p.Usage}
	if !s.Included {
		t.lag = t.reach
	}
	t.kept = keptText + utf8.UTFMax*t.reach
	return t
}

// count notes that the client has more text, and so that of so many ids.
func (s *stops) count(text []byte, ids int, sure bool) {
	if s.lag == 0 {
		return
	}
	s.chars += utf8.RuneCount(text)
	far := s.lag + proof
	if !sure { // the place may be inside a character: better wait for one that is not
		far *= 4
	}
	if at := s.chars + s.lag; at-s.next.chars >= far {
		s.from, s.next = s.next, place{ids: ids, chars: at}
	}
}

// point adds to p what is held back there.
func (s *stops) point(p *Point, resumed bool) {
	switch {
	case resumed: // the text that is missing is known
		p.shown = append(p.shown, s.back...)
	case s.lag > 0 && p.Answer > 0:
		p.Sure = false
		p.lag, p.tail, p.chars = s.lag, p.Answer-s.from.ids, s.chars+s.lag-s.from.chars
	}
}

// holds reports whether text, decoded from the last ids, is the end of the client's text and what is held back of it. It then keeps the latter.
func (s *Point) holds(text string) bool {
	n := utf8.RuneCountInString(text)
	if n == s.chars-1 { // some tokenizers drop the first space
		text, n = " "+text, n+1
	}
	if n != s.chars {
		return false
	}
	at := len(text) - len(lastRunes([]byte(text), s.lag))
	before, held := text[:at], text[at:]
	if len(before) > len(s.shown) {
		before = before[len(before)-len(s.shown):]
	}
	if before == "" || !bytes.HasSuffix(s.shown, []byte(before)) || strings.ContainsRune(held, utf8.RuneError) {
		return false
	}
	s.held = []byte(held)
	return true
}

// lastRunes returns the last n characters of text, all of it when there are fewer.
func lastRunes(text []byte, n int) []byte {
	at := len(text)
	for ; n > 0 && at > 0; n-- {
		_, size := utf8.DecodeLastRune(text[:at])
		at -= size
	}
	return text[at:]
}

// find returns the string that ends first in text, behind from, as vLLM does: of those that end at the same place the first one of
// the list. It returns its end and its number, -1 when there is none.
func (s *stops) find(text []byte, from int) (end, which int) {
	which = -1
	for i, one := range s.Strings {
		start := max(0, from-len(one)+1)
		at := bytes.Index(text[start:], []byte(one))
		if at < 0 {
			continue
		}
		if e := start + at + len(one); which < 0 || e < end {
			end, which = e, i
		}
	}
	return end, which
}

// cut looks for the strings in an event of the continuation with so many ids, and leaves in it the text that the client may have. It
// reports whether a string ended the answer.
func (s *stops) cut(t *tokens, c *openai.Chunk, ids int) (stopped bool, err error) {
	if c.IDs == nil && len(c.Text) > len(`""`) {
		return false, ErrStrange // which token a text is of decides what counts
	}
	w := append(s.window[:0], lastRunes(t.shown, s.reach)...)
	seen := len(w)
	w = append(w, s.back...)
	old := len(w)
	w = openai.AppendText(w, c.Text)
	s.window = w

	end, which, err := s.stopIn(t, c, w, old, ids)
	to := len(w)
	switch {
	case err != nil:
		return false, err
	case which >= 0:
		if to = end; !s.Included {
			to -= len(s.Strings[which])
		}
		c.Finish = []byte(`"stop"`)
		c.Stop = rawjson.AppendString(nil, s.Strings[which])
	case c.Finish == nil:
		to = max(seen, len(w)-len(lastRunes(w, s.lag)))
	}
	if to < seen {
		return false, ErrStrange
	}
	s.text = rawjson.AppendString(s.text[:0], string(w[seen:to]))
	c.Text = s.text
	t.shown = lastBytes(append(t.shown, w[seen:to]...), s.kept)
	s.back = append(s.back[:0], w[to:]...)
	return which >= 0, nil
}

// stopIn finds the string that ends the answer in the text of an event, which begins at old in w and has so many ids. It takes the ids
// behind the one that completes the string off the answer's count, as vLLM does.
func (s *stops) stopIn(t *tokens, c *openai.Chunk, w []byte, old, ids int) (end, which int, err error) {
	if t.answered <= s.Least || old == len(w) {
		return 0, -1, nil
	}
	first := t.answered - ids
	end, which = s.find(w, old)
	if which < 0 || ids == 1 || first >= s.Least && !s.counted {
		return end, which, nil
	}
	e := s.steps(t, c.IDs, w[old:])
	if first < s.Least { // the text of some of the ids does not count
		from, ok := e.end(s.Least - first)
		if !ok {
			return 0, -1, ErrStrange
		}
		if end, which = s.find(w, old+from); which < 0 {
			return 0, -1, nil
		}
	}
	t.answered = first + e.reach(end-old)
	return end, which, nil
}

// steps is an event of several ids, and what engines decode from the first ones of them.
type steps struct {
	texts       Texts
	before, ids []uint32
	// text is the event's, start the length of the text of the ids before.
	text  string
	start int
}

func (s *stops) steps(t *tokens, raw, text []byte) *steps {
	e := &steps{texts: s.texts, text: string(text), start: -1}
	openai.EachID(raw, func(id uint32) bool { e.ids = append(e.ids, id); return true })
	if t.prompt == nil {
		e.texts = nil // the ids before are not known any more
		return e
	}
	if e.before = t.ids[:len(t.ids)-len(e.ids)]; len(e.before) == 0 {
		e.before = t.prompt
	}
	e.before = slices.Clip(e.before[max(0, len(e.before)-tailTokens):])
	return e
}

// end returns where the text of the first n ids ends in the event's text. It is false when that cannot be found out.
func (s *steps) end(n int) (int, bool) {
	if s.texts == nil {
		return 0, false
	}
	lists := [][]uint32{append(s.before, s.ids[:n]...), s.before}
	if s.start >= 0 {
		lists = lists[:1]
	}
	texts, ok := s.texts(lists)
	if !ok || len(texts) != len(lists) {
		s.texts = nil
		return 0, false
	}
	whole := func(i int) string { return strings.TrimRight(texts[i], "\uFFFD") } // without the bytes of a character that is not complete
	if s.start < 0 {
		s.start = len(whole(1))
	}
	at := len(whole(0)) - s.start
	if at < 0 || at > len(s.text) || !strings.HasSuffix(whole(0), s.text[:at]) {
		s.texts = nil
		return 0, false
	}
	return at, true
}

// reach returns how many of the ids it takes for a text of that length. Where that cannot be found out, it is all of them.
func (s *steps) reach(length int) int {
	if at, ok := s.end(len(s.ids)); !ok || at != len(s.text) {
		return len(s.ids)
	}
	from, to := 0, len(s.ids) // the text of the first from ids is too short, that of to is not
	for to-from > 1 {
		n := (from + to) / 2
		switch at, ok := s.end(n); {
		case !ok:
			return len(s.ids)
		case at < length:
			from = n
		default:
			to = n
		}
	}
	return to
}
