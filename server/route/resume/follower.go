package resume

import (
	"bytes"
	"errors"
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/messages"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/sse"
)

const (
	// MaxTokens bounds prompt and answer of a stream that is followed: four bytes each.
	MaxTokens = 1 << 17
	// maxEvent bounds the event in hand. The first one has the prompt's ids.
	maxEvent = 4 << 20
	// roomy is the largest buffer that is kept for the next event.
	roomy = 16 << 10
)

// ErrFailed is an engine's error event in mid-stream. It was not forwarded.
var ErrFailed = errors.New("the engine reported a failure in its stream")

// ErrAborted is why a stream ended that the engine aborted. The event with its finish reason was not forwarded.
var ErrAborted = errors.New("the engine aborted the answer: it was paused, put to sleep or asked to abort the request")

// ErrStrange is an event in a continuation that cannot be put into the client's stream.
var ErrStrange = errors.New("the continuation is not of the expected form")

// Lost is why a stream is no longer followed.
type Lost string

// The reasons.
const (
	// NotLost: it is followed.
	NotLost Lost = ""
	// LostForm: an event that is not one piece of plain text.
	LostForm Lost = "form"
	// LostIDs: text without ids.
	LostIDs Lost = "no_ids"
	// LostSize: more tokens than are remembered.
	LostSize Lost = "size"
)

// Params describe the stream to follow.
type Params struct {
	// API is the client's.
	API prompt.API
	// Known are the prompt's ids as the router has them, read-only. Where the engine's are the same they
	// are not kept twice.
	Known []uint32
	// Usage is set when the client's stream ends with the usage.
	Usage bool
	// Stops are the strings that end the answer.
	Stops openai.Stops
	// Logprobs is set when the client of a completion gets the log probabilities of its tokens.
	Logprobs bool
	// Parser says whether the answer may be one that an engine's parser takes apart.
	Parser Parser
	// Repeated is how many choices an answer has that another engine would write again, as it stands; 0 for any other. With HasParser that is
	// the second way, for a stream that cannot be continued by token ids.
	Repeated int
	// Shown is set when the client gets the ids, too, so that it can continue the stream at another router.
	Shown bool
	// Received are a client's events of a stream that another router has begun, whole and with their ids.
	Received []byte
	// Message is set when the engine was asked for a message as a chat, and the client gets the events of a message.
	Message bool
}

// Parser says whether the answer may be one that an engine's parser takes apart, which another engine continues by token ids.
type Parser int

const (
	// NoParser: such an answer is not followed.
	NoParser Parser = iota
	// PerhapsParser: it is one if it has reasoning.
	PerhapsParser
	// HasParser: it is one, since tools may be called.
	HasParser
)

// Texts returns what an engine decodes from several lists of ids, false when none does. It may block.
type Texts func(lists [][]uint32) ([]string, bool)

// Follower follows one stream. It keeps four bytes for each token, at most MaxTokens of them, the end of
// the text, and the event that is not complete.
type Follower struct {
	// These are what the usual event needs, next to each other.
	read openai.Chunks
	lost Lost
	held []byte // the event that is not complete
	tokens
	client
	raw   bool   // not in events: passed on as it comes
	stops *stops // nil without stop strings

	continuation
	replay *replay // nil unless a parser may be at work
	repeat *repeat // nil unless the answer is to be written again
	spare  *repeat // nil unless that is the second way
	named  *named  // nil unless the events have names
	// message says the client's events; nil unless the engine was asked for a message as a chat.
	message *messages.Stream
	// ahead is what a client that continues its message gets before anything else.
	ahead []byte
	p     Params
	chunk openai.Chunk // the event being parsed
}

// continuation is the part of a stream that another engine sends.
type continuation struct {
	resumed bool
	// base is how many tokens of the answer came before it.
	base int
	// offset is where the text of the last token with log probabilities ends, as they count it, and shift what the present continuation's
	// offsets lack.
	offset, shift int
	// notice is what a client that keeps the ids gets before its first event.
	notice []byte
}

// New makes a Follower. Of what was Received its Point shows what comes of it.
func New(p Params) *Follower {
	f, received := newFollower(p), p.Received
	if received == nil {
		return f
	}
	if f.message != nil {
		takeMessage(f, received)
		f.out, f.p.Received = nil, nil
		return f
	}
	for len(received) > 0 && !f.raw {
		n := bytes.Index(received, []byte("\n\n")) + 2
		if n < 2 {
			break // the client has no use of a part of an event
		}
		if _, err := f.Feed(received[:n]); err != nil {
			f.Lose(LostForm)
			break
		}
		received = received[n:]
	}
	if f.named != nil { // the client has what closes a part
		if _, err := f.named.close(nil); err != nil {
			f.Lose(LostForm)
		}
	}
	f.out, f.p.Received = nil, nil
	return f
}

func newFollower(p Params) *Follower {
	f := &Follower{p: p, tokens: tokens{sure: true}, client: client{api: p.API, counted: p.Usage}, stops: newStops(&p)}
	if p.API == prompt.APIMessages || p.API == prompt.APIResponses {
		f.named, f.stops = newNamed(), nil
		return f
	}
	if p.Repeated > 0 && p.Parser == HasParser {
		f.spare = newRepeat(p.Repeated)
	} else if p.Repeated > 0 {
		f.repeat, f.stops = newRepeat(p.Repeated), nil
		return f
	}
	if p.Parser != NoParser && f.stops == nil {
		f.replay = &replay{on: p.Parser == HasParser}
	}
	f.shows = p.Shown
	if p.Message {
		f.message = &messages.Stream{}
	}
	return f
}

// Lose ends the following for a reason that the events do not show. Ids are still taken out.
func (f *Follower) Lose(why Lost) {
	if f.lost == NotLost {
		f.out = append(f.out, f.named.withheld()...)
		f.lost, f.ids, f.prompt, f.replay, f.repeat, f.named = why, nil, nil, nil, nil, nil
		if f.stops == nil || !f.resumed { // the end of the text is still searched
			f.shown = nil
		}
	}
}

// Feed takes the next bytes of the engine's stream, cut anywhere, and gives those for the client, which
// are valid until the next call and may be those of piece, changed. With an error, the stream is broken after them; with
// io.EOF the client has its end, whatever else the engine sends.
func (f *Follower) Feed(piece []byte) ([]byte, error) {
	out, err := f.feed(piece)
	if f.message != nil {
		return sayMessage(f, out, err)
	}
	return out, err
}

// feed is Feed in the words of the engine's API.
func (f *Follower) feed(piece []byte) ([]byte, error) {
	if f.raw {
		return piece, nil
	}
	if out := f.usual(piece); out != nil {
		return out, nil
	}
	f.out = f.out[:0]
	data, from := piece, 0
	if len(f.held) > 0 {
		from = len(f.held) - 1
		f.held = append(f.held, piece...)
		data = f.held
	}
	if foreign(piece) && len(f.held) == 0 && sse.IsComment(piece) && sse.EndsEvent(piece) {
		return piece, nil
	}
	if foreign(piece) || len(data) > maxEvent {
		return f.passThrough(data)
	}
	var err error
	for err == nil {
		n := bytes.Index(data[from:], []byte("\n\n"))
		if n < 0 {
			break
		}
		n += from + 2
		err = f.event(data[:n])
		data, from = data[n:], 0
	}
	if cap(f.held) > roomy && len(data) < roomy {
		f.held = append([]byte(nil), data...)
	} else {
		if f.prompt == nil && len(data) == len(piece) && len(data) > roomy { // the prompt's ids begin
			f.held = slices.Grow(f.held[:0], max(len(data), 8*len(f.p.Known)+roomy))
		}
		f.held = append(f.held[:0], data...)
	}
	return f.out, err
}

// usual takes a piece that is one whole event with a text and its ids, as nearly all are. It changes the event in its place, because of
// thousands of streams nothing stays in the processor's cache that each has of its own. It returns nil, and has done nothing, for any other piece.
func (f *Follower) usual(piece []byte) []byte {
	const begin, end, null = "data: ", "\n\n", "null"
	if f.prompt == nil || f.lost != NotLost || f.resumed || f.done || f.spare != nil || len(f.held) > 0 || len(piece) < len(begin)+len(end) || string(piece[:len(begin)]) != begin {
		return nil
	}
	if bytes.Index(piece, []byte(end)) != len(piece)-len(end) {
		return nil // several events, or a part of one
	}
	p, ok := f.read.Alike(piece[len(begin) : len(piece)-len(end)])
	if !ok || len(p.IDs) < len(null) {
		return nil
	}
	first := len(f.ids)
	if !f.take(p.IDs) || f.tooMany() {
		f.ids = f.ids[:first]
		return nil
	}
	f.answered = len(f.ids)
	if f.replay != nil {
		f.replay.join(&f.tokens, first, p.Text, nil)
	}
	f.show(p.Text, len(f.ids)-first, f.stops)
	if f.p.Shown {
		return piece
	}
	from := len(begin) + p.From
	rest := piece[from+len(p.IDs):]
	from += copy(piece[from:], null)
	return piece[:from+copy(piece[from:], rest)]
}

// foreign reports whether a piece has line ends that engines do not send.
func foreign(piece []byte) bool { return bytes.IndexByte(piece, '\r') >= 0 }

// passThrough ends the following of a stream that does not come in vLLM's events.
func (f *Follower) passThrough(data []byte) ([]byte, error) {
	if f.resumed {
		return nil, ErrStrange
	}
	f.Lose(LostForm)
	f.raw, f.held, f.spare = true, nil, nil
	if len(f.out) > 0 {
		return append(f.out, data...), nil
	}
	return data, nil
}

// event takes one event with the blank line that ends it.
func (f *Follower) event(e []byte) error {
	head, data, ok := cutEvent(e)
	switch {
	case !ok || len(head) > 0 && f.named == nil:
		return f.lines(e)
	case f.named != nil && (string(data) != "[DONE]" || !f.done):
		return f.repeats(e, head, data)
	case string(data) == "[DONE]":
		if f.repeat != nil && f.resumed && !f.repeat.over() {
			return ErrDiverged
		}
		f.done = true
		f.out = append(f.out, e...)
		return nil
	}
	if f.repeat != nil {
		return f.repeats(e, nil, data)
	}
	c := &f.chunk
	if !f.read.Read(data, c) {
		f.Lose(LostForm)
		return f.asIs(e)
	}
	if c.Fault >= 500 && f.lost == NotLost {
		return ErrFailed
	}
	if c.Fault > 0 {
		f.Lose(LostForm)
		return f.asIs(e)
	}
	if string(c.Finish) == `"abort"` {
		return ErrAborted
	}
	if f.resumed && f.replay != nil && f.replay.parse != nil {
		return f.replay.take(c, &f.tokens, &f.client)
	}
	first := f.answered
	f.note(c)
	if f.resumed {
		return f.rewrite(c, f.answered-first)
	}
	if c.Empty && c.Choices > 0 && c.Finish == nil && c.IDs != nil && !f.p.Shown {
		return nil // it is there for the ids alone
	}
	from := len(f.out) + len("data: ")
	if f.p.Shown {
		f.out = append(append(f.out, "data: "...), data...)
	} else {
		f.out = c.Without(append(f.out, "data: "...))
	}
	if f.spare != nil && f.spare.note(f.out[from:]) != nil {
		f.spare = nil
	}
	f.out = append(f.out, "\n\n"...)
	return nil
}

// lines takes an event that is more than one line. Comments pass; inside another event they are dropped.
func (f *Follower) lines(e []byte) error {
	rest := withoutComments(e)
	switch {
	case len(rest) == 0:
		f.withdraw(e)
		f.out = append(f.out, e...)
		return nil
	case len(rest) < len(e):
		return f.event(rest)
	}
	f.Lose(LostForm)
	return f.asIs(e)
}

// withoutComments returns an event without its comments and without blank lines at its beginning.
func withoutComments(e []byte) []byte {
	if e[0] != ':' && e[0] != '\n' && !bytes.Contains(e, []byte("\n:")) {
		return e
	}
	rest := make([]byte, 0, len(e))
	for line := range bytes.Lines(e) {
		if line[0] != ':' && (line[0] != '\n' || len(rest) > 0) {
			rest = append(rest, line...)
		}
	}
	return rest
}

// asIs forwards an event that was not understood.
func (f *Follower) asIs(e []byte) error {
	if f.resumed {
		return ErrStrange
	}
	f.spare = nil
	f.out = append(f.out, e...)
	return nil
}

// note remembers an event's content.
func (f *Follower) note(c *openai.Chunk) {
	f.finished = f.finished || c.Finish != nil
	f.usage = f.usage || c.Choices == 0 && c.Usage != nil
	if c.Finish != nil || c.Choices == 0 {
		f.stamped(c)
	}
	if c.Choices == 0 {
		return
	}
	if f.replay != nil && !f.resumed && c.IDs != nil && !c.Nulls.Transfer {
		f.replay.bare = true
	}
	text := len(c.Text) > len(`""`)
	f.blind = f.blind || c.IDs == nil && text
	if f.lost != NotLost {
		openai.EachID(c.IDs, func(uint32) bool { f.answered++; return true })
		return
	}
	plain := c.Plain || f.replay != nil && !f.resumed && f.replay.takes(c)
	if c.Choices > 1 || c.Index != 0 || !plain || !f.measure(c, f.p.Logprobs) || c.Empty && c.Finish == nil && c.IDs == nil {
		f.Lose(LostForm)
		return
	}
	if f.head == nil {
		f.head = bytes.Clone(c.Head)
	}
	if f.prompt == nil && c.PromptIDs != nil {
		why := f.readPrompt(c.PromptIDs, f.p.Known)
		if f.p.Received != nil && f.p.Known != nil && !equal(f.prompt, f.p.Known) {
			why = LostForm // a client says so, and its request another thing
		}
		if why != NotLost {
			f.Lose(why)
			return
		}
	}
	if c.IDs == nil {
		if text || c.Finish != nil || !c.Plain {
			f.Lose(LostIDs)
		}
		return // the event with the role
	}
	if f.prompt == nil {
		f.Lose(LostIDs)
		return
	}
	before := len(f.ids)
	if !f.take(c.IDs) {
		f.Lose(LostIDs)
		return
	}
	f.answered = len(f.ids)
	if f.tooMany() {
		f.Lose(LostSize)
		return
	}
	if f.replay != nil {
		f.replay.join(&f.tokens, before, c.Text, c.Delta)
	}
	f.parsed = f.parsed || c.Empty
	if f.stops != nil && f.resumed {
		f.settle(c.Text, len(f.ids)-before) // the client gets the text only when no string can end it
		return
	}
	f.show(c.Text, len(f.ids)-before, f.stops)
}

// measure notes where the text ends that an event's log probabilities are of. It is false for log probabilities that cannot be continued.
func (n *continuation) measure(c *openai.Chunk, asked bool) bool {
	if c.Logprobs == nil {
		return true
	}
	end, ok := openai.TextEnd(c.Logprobs)
	if len(c.IDs) <= len("[]") { // no tokens
		end, ok = n.offset-n.shift, true
	}
	n.offset = end + n.shift
	return asked && ok
}
