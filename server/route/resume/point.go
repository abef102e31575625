package resume

import (
	"bytes"
	"io"
	"strings"

	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// Point is where a stream ended early and can be resumed.
type Point struct {
	// IDs are the ids of the prompt, followed by the Answer ids of the answer that the client has.
	IDs    []uint32
	Answer int
	// Sure is set when the client has all text of the ids. Otherwise Settle decides, with the texts of the Tails.
	Sure bool

	shown []byte
	// back is how many of the last ids may have no text that the client has.
	back int
	// lag is how many characters at the end of the text the engine held back, because of stop strings. Then the tail has tail ids, of chars
	// characters, and held becomes the text held back.
	lag, tail, chars int
	held             []byte
	// torn: the client has more of the ids after the point than their text.
	torn bool
	// Again is set when another engine is to write the whole answer again. Response is the name that the client has for it, where its
	// engine keeps it under that name; else it is empty.
	Again    bool
	Response string
	// Replay is set for an answer that is continued by token ids. It decides, instead of Sure and Settle.
	Replay *Replay
}

// tailTokens is more than the tokens of one character.
const tailTokens = 16

// last are the last ids of the answer.
func (s *Point) last() []uint32 {
	n := min(tailTokens, s.Answer)
	if s.lag > 0 {
		n = s.tail
	}
	return s.IDs[len(s.IDs)-n:]
}

// maxBack bounds the ids at the end of an answer that may be drawn again: more than a part of a character has.
const maxBack = 3

// Tails are lists of ids whose texts Settle takes: the last ids of the answer, and the same without its last ids.
func (s *Point) Tails() [][]uint32 {
	tail := s.last()
	lists := [][]uint32{tail}
	for n := 1; n <= min(s.back, maxBack, len(tail)-1); n++ {
		lists = append(lists, tail[:len(tail)-n])
	}
	return lists
}

// Settle reports whether the client has all text of the ids, of which an engine decoded texts from the Tails. Last ids of which the client has
// no text, since a character is not complete, are taken from the point: they are drawn again.
func (s *Point) Settle(texts []string) bool {
	for n, text := range texts {
		if s.ends(text) {
			s.IDs, s.Answer = s.IDs[:len(s.IDs)-n], s.Answer-n
			return true
		}
	}
	return false
}

// ends reports whether the client's text ends with text, which an engine decoded from the last ids: then
// nothing of it is held back but what is held because of stop strings. They may begin inside a character, and some tokenizers
// drop the first space.
func (s *Point) ends(text string) bool {
	if s.torn {
		return false
	}
	if s.lag > 0 {
		return s.holds(text)
	}
	text = strings.TrimLeft(text, "\uFFFD ")
	return text != "" && bytes.HasSuffix(s.shown, []byte(text))
}

// reason returns why the stream is not followed.
func (f *Follower) reason() Lost {
	if f.lost == NotLost && (f.prompt == nil || f.head == nil) {
		return LostIDs // it ended before the engine sent them
	}
	return f.lost
}

// Point is false when the stream cannot be resumed: it is not followed, or has nothing left to write.
func (f *Follower) Point() (Point, bool) {
	if f.Repeats() {
		return Point{Again: true, Sure: true, Response: f.named.response(f.p.API)}, !f.done
	}
	if f.reason() != NotLost || f.finished || f.done {
		return f.Again()
	}
	if f.replay != nil && (f.replay.on || f.safe == 0) {
		return f.replay.point(&f.tokens), true
	}
	ids := make([]uint32, 0, len(f.prompt)+f.safe)
	ids = append(append(ids, f.prompt...), f.ids[:f.safe]...)
	p := Point{IDs: ids, Answer: f.safe, Sure: f.sure || f.safe == 0, shown: bytes.Clone(f.shown)}
	if f.stops != nil {
		f.stops.point(&p, f.resumed)
	}
	if f.torn() {
		p.Sure, p.torn = false, true
	}
	if f.stops == nil && !f.p.Shown && !f.p.Logprobs { // of the ids of which a text came at least one is in it
		p.back = f.last - 1
	}
	return p, true
}

// Again is the Point of a stream that another engine may write again, where it cannot be continued otherwise. It is false for any other.
func (f *Follower) Again() (Point, bool) {
	if f.spare == nil || f.resumed || f.done {
		return Point{}, false
	}
	return Point{Again: true, Sure: true}, true
}

// Resumable reports whether the stream could be resumed at this moment without asking for a text: there is a Point, and it is sure.
func (f *Follower) Resumable() bool {
	return f.lost == NotLost && f.prompt != nil && f.head != nil && (f.replay == nil || !f.replay.on) && !f.finished && !f.done && !f.torn() && (f.safe == 0 || f.sure && (f.resumed || f.stops == nil || f.stops.lag == 0))
}

// torn reports whether the client has log probabilities of ids without text: these cannot be drawn again.
func (f *Follower) torn() bool { return f.p.Logprobs && len(f.ids) > f.safe }

// Resume announces that a completion is fed from now on that continues from p, which Point returned last and which is Sure or settled.
// The completion is asked for without the stop strings: the Follower looks for them, and asks texts, which may be nil, a few
// times when a string ends in an event of several ids.
func (f *Follower) Resume(p *Point, texts Texts) {
	if f.stops != nil {
		f.stops.texts = texts
		if !f.resumed {
			f.stops.back = append(f.stops.back[:0], p.held...)
		}
	}
	f.safe = min(f.safe, p.Answer)
	var notice []byte
	if n := len(f.ids) - f.safe; n > 0 && f.p.Shown {
		notice = withdrawal(n)
	}
	f.ids, f.answered = f.ids[:f.safe], f.safe
	f.sure, f.parsed = true, false
	f.continuation = continuation{resumed: true, base: f.safe, offset: f.offset, shift: f.offset, notice: notice}
	f.held = f.held[:0]
}

// Ending returns what is missing of a stream after the client has its finish reason. It returns false for any other stream.
func (f *Follower) Ending() ([]byte, bool) {
	if f.done && len(f.ahead) > 0 {
		return f.ahead, true
	}
	if !f.finished || f.done || f.raw {
		return nil, false
	}
	if f.named != nil {
		return f.named.ending()
	}
	f.out = f.out[:0]
	if !f.close(&f.tokens) {
		return nil, false
	}
	if f.message != nil {
		end, err := sayMessage(f, f.out, nil)
		return end, err == nil
	}
	return f.out, true
}

// rewrite writes an event of the continuation, with so many ids, for the client.
func (f *Follower) rewrite(c *openai.Chunk, ids int) error {
	if c.Choices > 0 && (c.Choices > 1 || c.Index != 0 || !c.Plain || c.Logprobs != nil && !f.p.Logprobs) {
		return ErrStrange
	}
	if c.Logprobs != nil {
		c.Logprobs = openai.ShiftOffsets(nil, c.Logprobs, f.shift)
	}
	stopped := false
	if f.stops != nil && c.Choices > 0 {
		var err error
		if stopped, err = f.stops.cut(&f.tokens, c, ids); err != nil {
			return err
		}
	}
	if c.Choices > 0 && len(c.Text) <= len(`""`) && c.Finish == nil && len(c.IDs) <= len(`[]`) {
		return nil
	}
	d := f.words(&f.tokens)
	if f.blind && c.Usage != nil { // no ids to count: the engine counts its own part
		n := c.OutputTokens()
		if n < 0 {
			return ErrStrange
		}
		d.OutputTokens = f.base + n
	}
	f.out = append(f.out, f.notice...)
	f.notice = nil
	f.write(&d, c)
	if stopped {
		if f.finished = true; !f.close(&f.tokens) {
			return ErrStrange
		}
		return io.EOF
	}
	return nil
}
