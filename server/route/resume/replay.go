package resume

import (
	"bytes"
	"errors"
	"time"

	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// replay is what a Follower knows of an answer that an engine's parser takes apart: into text, reasoning and tool calls. The parser's state
// cannot be known, so another engine's parser is given all tokens again, in the portions in which they came.
type replay struct {
	// on: the answer is continued by token ids.
	on bool
	// bare: the client's events lack members that vLLM 0.33 writes although they are null.
	bare     bool
	portions []openai.Portion
	calls    [][]byte
	// last is the last delta that shows something, whose tokens are those of the answer from to.
	last     []byte
	from, to int
	// scratch is what the next delta is tidied into.
	scratch []byte

	// The rest belongs to a continuation.
	parse Parse
	// waiting are tokens that the parser was not given yet.
	waiting []uint32
	// took is how long the parser took, over when it was last done.
	took time.Duration
	over time.Time
	// usage is set when the tokens that wait came with a usage.
	usage []byte
}

// Parse has an engine's parser take more tokens of an answer. It may block.
type Parse func(before *openai.Parsed, ids []uint32, finish, stop []byte) (*openai.Derendered, error)

// The parser gets each event's tokens at once while its turns are quick. Of a long answer they are not, and it shares a processor with all requests
// of its engine: then the tokens wait for pause times as long as its last turn took.
const (
	pause = 4
	quick = 50 * time.Millisecond
)

// join notes that the ids from first on came at once, with a delta that is known by its text where raw is nil.
func (r *replay) join(t *tokens, first int, text, delta []byte) {
	n := len(t.ids) - first
	if n == 0 {
		return
	}
	if n > 1 {
		r.portions = append(r.portions, openai.Portion{From: first, Count: n})
	}
	switch {
	case delta != nil:
		if tidy := openai.Tidy(r.scratch[:0], delta); string(tidy) != "{}" {
			r.last, r.scratch = tidy, r.last
			r.from, r.to = first, len(t.ids)
		}
	case len(text) > len(`""`):
		r.last = append(append(append(r.last[:0], `{"content":`...), text...), '}')
		r.from, r.to = first, len(t.ids)
	}
}

// takes reports whether an event that is not plain is a parser's, and notes its tool calls.
func (r *replay) takes(c *openai.Chunk) bool {
	if c.Delta == nil || c.Logprobs != nil {
		return false
	}
	r.on = true
	return r.called(c.Delta)
}

// called notes the tool calls that begin in a delta.
func (r *replay) called(delta []byte) bool {
	ok := true
	openai.EachCall(delta, func(index int, id []byte) {
		switch {
		case index >= 0 && index < len(r.calls):
			r.calls[index] = bytes.Clone(id)
		case index == len(r.calls):
			r.calls = append(r.calls, bytes.Clone(id))
		default:
			ok = false
		}
	})
	return ok
}

// given is what the parser has been given so far.
func (r *replay) given(t *tokens) *openai.Parsed {
	return &openai.Parsed{Prompt: t.prompt, Answer: t.ids, Portions: r.portions, Calls: r.calls}
}

// point is the Point of an answer that is continued by token ids: behind all tokens whose events the client has.
func (r *replay) point(t *tokens) Point {
	ids := make([]uint32, 0, len(t.prompt)+len(t.ids))
	ids = append(append(ids, t.prompt...), t.ids...)
	p := &Replay{Perhaps: !r.on, before: openai.Parsed{Prompt: ids[:len(t.prompt)], Answer: ids[len(t.prompt):], Portions: r.portions, Calls: r.calls}}
	p.last, p.from, p.to = bytes.Clone(r.last), r.from, r.to
	return Point{IDs: ids, Answer: len(t.ids), Replay: p}
}

// Parsed reports whether the answer is known to be one that a parser takes apart, and is followed as that.
func (f *Follower) Parsed() bool { return f.replay != nil && f.replay.on }

// NoParser notes that no parser is at work, where it was not known. What is continued is then the text alone.
func (f *Follower) NoParser() { f.replay = nil }

// Replay is the part of a Point of an answer that an engine's parser takes apart.
type Replay struct {
	before   openai.Parsed
	last     []byte
	from, to int
	// Perhaps is set while nothing shows that a parser is at work: then a refusal to Accept may mean that there is none.
	Perhaps bool
	// Rendered is the request as an engine has it.
	Rendered *openai.Rendered
}

var (
	errPrompt = errors.New("the engine renders another prompt")
	errParser = errors.New("the engine's parser makes something else of the answer")
)

// Accept checks that an engine makes of the request what the first one made of it: the same prompt, and the same of the
// last tokens that the client has something of.
func (r *Replay) Accept(rendered *openai.Rendered, parse Parse) error {
	if !equal(rendered.IDs, r.before.Prompt) {
		return errPrompt
	}
	r.Rendered = rendered
	if r.to == 0 { // nothing was shown: any token shows whether there is a parser
		_, err := parse(r.before.Until(0), rendered.IDs[:1], nil, nil)
		return err
	}
	last, err := parse(r.before.Until(r.from), r.before.Answer[r.from:r.to], nil, nil)
	if err != nil {
		return err
	}
	if want := openai.Tidy(nil, r.last); !bytes.Equal(last.Delta, want) {
		return errParser
	}
	return nil
}

func equal(a, b []uint32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// ResumeParsed announces that what is fed from now on are tokens that continue from the last Point, which parse takes apart.
func (f *Follower) ResumeParsed(parse Parse) {
	f.continuation = continuation{resumed: true, base: len(f.ids)}
	f.held = f.held[:0]
	f.answered = len(f.ids)
	f.spare = nil
	f.replay.begin(parse)
}

// begin announces a continuation, whose tokens parse takes apart.
func (r *replay) begin(parse Parse) {
	r.on = true
	r.parse, r.waiting, r.usage, r.took = parse, r.waiting[:0], nil, 0
}

// take takes an event of a continuation by token ids, which follows on t, and writes what comes of it into the client's stream.
func (r *replay) take(c *openai.Chunk, t *tokens, to *client) error {
	if c.Choices == 0 {
		to.usage = to.usage || c.Usage != nil
		if c.Usage != nil && c.Fingerprint == nil {
			c.Fingerprint = to.stamp.Fingerprint
		}
		w := to.words(t)
		to.write(&w, c)
		return nil
	}
	if c.Choices > 1 || c.Index != 0 || c.IDs == nil && c.Finish == nil || c.IDs != nil && !openai.EachID(c.IDs, func(id uint32) bool { r.waiting = append(r.waiting, id); return true }) {
		return ErrStrange
	}
	if len(t.prompt)+len(t.ids)+len(r.waiting) > MaxTokens {
		return ErrStrange
	}
	if c.Usage != nil {
		r.usage = append(r.usage[:0], c.Usage...)
	}
	if c.Finish == nil && (len(r.waiting) == 0 || r.took > quick && time.Since(r.over) < pause*r.took) {
		return nil
	}
	return r.parseWaiting(c, t, to)
}

// parseWaiting has the tokens that wait parsed, and writes what came of them for the client.
func (r *replay) parseWaiting(c *openai.Chunk, t *tokens, to *client) error {
	began := time.Now()
	d, err := r.parse(r.given(t), r.waiting, c.Finish, c.Stop)
	if err != nil {
		return err
	}
	r.over = time.Now()
	r.took = r.over.Sub(began)
	if c.Finish != nil && d.Finish == nil || !r.called(d.Delta) {
		return ErrStrange
	}
	first := len(t.ids)
	t.ids = append(t.ids, r.waiting...)
	t.answered = len(t.ids)
	r.join(t, first, nil, d.Delta)
	said := openai.Chunk{Choices: 1, Delta: d.Delta, Finish: d.Finish, Stop: c.Stop, Nulls: openai.Nulls{Versions: !r.bare, Transfer: !r.bare}}
	if t.shows {
		said.IDs = rawjson.AppendUint32s(nil, r.waiting)
	}
	if c.Finish != nil && !to.counted {
		said.Fingerprint = to.stamp.Fingerprint
	}
	r.waiting = r.waiting[:0]
	to.finished = to.finished || c.Finish != nil
	if string(d.Delta) == "{}" && c.Finish == nil && !t.shows {
		return nil
	}
	if len(r.usage) > 0 {
		said.Usage = r.usage
	}
	w := to.words(t)
	to.write(&w, &said)
	r.usage = r.usage[:0]
	return nil
}
