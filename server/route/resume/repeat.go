package resume

import (
	"errors"
	"hash/maphash"

	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// ErrDiverged is why the answer of another replica to the same request cannot continue the one that the client has begun to read.
var ErrDiverged = errors.New("another replica writes another answer")

// maxPlaces bounds the places of an answer that grow: its choices, and their tool calls.
const maxPlaces = 256

// repeat follows an answer that another replica would write again, because nothing in it is drawn, or with a seed. When its replica dies, another one is
// asked for the whole answer, which is compared with the one that the client has; what lies beyond is passed on. So what the client has in the
// end is the other replica's answer, whatever parsers and grammars are at work.
type repeat struct {
	parts openai.Parts
	seed  maphash.Seed
	// has is what the client has, got what another replica has repeated of it.
	has, got grown
	// again: another replica repeats the answer.
	again bool
	head  []byte
	text  []byte // scratch
	// choices is how many the request asks for; ended are those whose end the client has.
	choices int
	ended   map[int]bool
	// quiet counts, for each choice, the events that add nothing, such as the one with the role, since it has grown: at the client, and in
	// another replica's repetition.
	quiet map[int]quiet
}

// quiet is how many events add nothing.
type quiet struct{ has, got int }

// grown is how far an answer has grown, by place.
type grown map[openai.Place]*growth

type growth struct {
	size int
	hash maphash.Hash
}

func newRepeat(choices int) *repeat {
	return &repeat{seed: maphash.MakeSeed(), has: grown{}, choices: choices, ended: map[int]bool{}, quiet: map[int]quiet{}}
}

// repeats takes an event of an answer that another replica would write again.
func (f *Follower) repeats(e, head, data []byte) (err error) {
	r, n := f.repeat, f.named
	again := false
	if n != nil {
		f.out, err = n.read(f.out, e, head, data, f.Halted)
		f.finished, f.done, again = n.stopped || n.over, n.over, n.again
	} else if f.out, err = r.event(f.out, e, data); err == nil {
		f.finished, f.usage = r.over(), f.usage || r.parts.Choices == 0
	} else {
		again = r.again
	}
	if errors.Is(err, ErrStrange) && !again {
		f.Lose(LostForm)
		return f.asIs(e)
	}
	return err
}

// Repeats reports whether the answer is one that another engine would write again. No ids are needed of it.
func (f *Follower) Repeats() bool { return f.repeat != nil || f.named != nil }

// Repeat announces that what is fed from now on is the whole answer of another replica to the same request.
func (f *Follower) Repeat() {
	if f.named != nil {
		f.continuation, f.held = continuation{resumed: true}, f.held[:0]
		f.named.begin()
		return
	}
	if f.repeat == nil {
		spare := f.spare
		f.Lose(LostForm) // it is not continued by token ids any more
		f.repeat, f.spare, f.stops = spare, nil, nil
	}
	f.continuation = continuation{resumed: true}
	f.held = f.held[:0]
	f.repeat.begin()
}

func (r *repeat) place(g grown, at openai.Place) *growth {
	p := g[at]
	if p == nil {
		p = &growth{}
		p.hash.SetSeed(r.seed)
		g[at] = p
	}
	return p
}

// event takes the JSON of one event. It appends to out the event for the client.
func (r *repeat) event(out, e, data []byte) ([]byte, error) {
	if r.again {
		if err := r.read(data); err != nil {
			return out, err
		}
		return r.repeated(out, data)
	}
	if err := r.note(data); err != nil {
		return out, err
	}
	return append(out, e...), nil
}

// read reads the JSON of one event.
func (r *repeat) read(data []byte) error {
	p := &r.parts
	switch {
	case !p.Read(data):
		return ErrStrange
	case p.Fault >= 500:
		return ErrFailed
	case p.Odd || p.Fault > 0:
		return ErrStrange
	}
	for i := range p.Ends {
		if string(p.Ends[i].Finish) == `"abort"` {
			return ErrAborted
		}
	}
	return nil
}

// note takes the JSON of an event that the client gets.
func (r *repeat) note(data []byte) error {
	if err := r.read(data); err != nil {
		return err
	}
	p := &r.parts
	if r.head == nil && p.Head != nil {
		r.head = append(r.head, p.Head...)
	}
	for i := range p.List {
		part := &p.List[i]
		r.grow(r.place(r.has, part.Place), part)
		delete(r.quiet, part.Choice)
	}
	for i := range p.Ends {
		r.ended[p.Ends[i].Choice] = true
	}
	if r.isQuiet() {
		r.quiet[p.Last] = quiet{has: r.quiet[p.Last].has + 1}
	}
	if len(r.has) > maxPlaces || len(r.quiet) > maxPlaces {
		return ErrStrange
	}
	return nil
}

// grow adds a part, and returns what it adds to the size.
func (r *repeat) grow(g *growth, part *openai.Part) {
	if part.Member == openai.Probabilities {
		g.size += tokensIn(part.Text)
		return
	}
	r.text = openai.AppendText(r.text[:0], part.Text)
	g.size += len(r.text)
	g.hash.Write(r.text)
}

// tokensIn counts the elements of a raw list.
func tokensIn(list []byte) int {
	n := 0
	s := rawjson.Scanner{Data: list}
	s.Elements(func(int) bool { n++; return s.Skip() })
	return n
}

// begin announces that another replica repeats the answer.
func (r *repeat) begin() {
	r.again, r.got = true, grown{}
	for choice, q := range r.quiet {
		r.quiet[choice] = quiet{has: q.has}
	}
}

// isQuiet reports whether the event is one choice's, and adds nothing.
func (r *repeat) isQuiet() bool {
	return r.parts.Choices == 1 && len(r.parts.List) == 0 && len(r.parts.Ends) == 0
}

// hush takes an event of another replica that adds nothing. It reports whether the client has fewer of them.
func (r *repeat) hush(choice int) bool {
	if !r.met(choice) {
		return false
	}
	q := r.quiet[choice]
	q.got++
	isNew := q.got > q.has
	q.has = max(q.has, q.got)
	r.quiet[choice] = q
	return isNew
}

// met reports whether all that the client has of a choice was repeated.
func (r *repeat) met(choice int) bool {
	for at, has := range r.has {
		if at.Choice == choice && (r.got[at] == nil || r.got[at].size < has.size) {
			return false
		}
	}
	return true
}

// repeated takes an event of another replica's answer, from its beginning.
func (r *repeat) repeated(out, data []byte) ([]byte, error) {
	p := &r.parts
	if p.Choices == 0 {
		if !r.over() || p.Head == nil {
			return out, ErrDiverged
		}
		return r.pass(out, data), nil
	}
	known := false // the client has a part of the event
	for i := range p.List {
		if r.has[p.List[i].Place] != nil || !r.met(p.List[i].Choice) {
			known = known || !r.beyond(&p.List[i])
		}
	}
	for i := range p.Ends {
		known = known || r.ended[p.Ends[i].Choice]
	}
	if !known {
		return r.new(out, data)
	}
	return r.split(out)
}

// beyond reports whether the client has nothing of a part.
func (r *repeat) beyond(part *openai.Part) bool {
	has, got := r.has[part.Place], r.got[part.Place]
	return has == nil || got != nil && got.size >= has.size
}

// new passes on an event of which the client has nothing.
func (r *repeat) new(out, data []byte) ([]byte, error) {
	p := &r.parts
	if len(p.List) == 0 && len(p.Ends) == 0 {
		if !r.isQuiet() || !r.hush(p.Last) {
			return out, nil
		}
		return r.pass(out, data), nil
	}
	for i := range p.List {
		part := &p.List[i]
		if !r.met(part.Choice) {
			return out, ErrDiverged
		}
		r.extend(part)
	}
	for i := range p.Ends {
		if !r.met(p.Ends[i].Choice) {
			return out, ErrDiverged
		}
		r.ended[p.Ends[i].Choice] = true
	}
	return r.pass(out, data), nil
}

// extend adds a part that is new to the client to both sides.
func (r *repeat) extend(part *openai.Part) {
	r.grow(r.place(r.has, part.Place), part)
	got := r.place(r.got, part.Place)
	got.size = r.has[part.Place].size
	delete(r.quiet, part.Choice)
}

// split takes an event of which the client has some. The rest of a choice is one event: the texts and the probabilities of the same tokens
// stay together, wherever the client's stream ends.
func (r *repeat) split(out []byte) ([]byte, error) {
	p := &r.parts
	var all []openai.Left
	of := func(choice int) *openai.Left {
		for i := range all {
			if all[i].Choice == choice {
				return &all[i]
			}
		}
		all = append(all, openai.Left{Choice: choice, Tail: p.Tail})
		return &all[len(all)-1]
	}
	for i := range p.List {
		left, err := r.compare(&p.List[i])
		if err != nil {
			return out, err
		}
		to, part := of(p.List[i].Choice), openai.Part{Place: p.List[i].Place, Text: left}
		if to.Completion = to.Completion || part.Member == openai.CompletionText; len(left) == 0 {
			continue
		}
		if r.has[part.Place] == nil { // else the call has the id that the client knows
			part.ID = p.List[i].ID
		}
		to.Parts = append(to.Parts, part)
	}
	for i := range p.Ends {
		if end := &p.Ends[i]; !r.ended[end.Choice] {
			of(end.Choice).End = end
		}
	}
	for i := range all {
		left := &all[i]
		if len(left.Parts) == 0 && left.End == nil {
			continue
		}
		if !r.met(left.Choice) || r.ended[left.Choice] {
			return out, ErrDiverged
		}
		r.add(left)
		out = append(left.Append(append(out, "data: "...), r.head), "\n\n"...)
	}
	return out, nil
}

// add adds the rest of an event to both sides.
func (r *repeat) add(left *openai.Left) {
	for i := range left.Parts {
		part := &left.Parts[i]
		has := r.place(r.has, part.Place)
		if part.Member == openai.Probabilities {
			has.size += tokensIn(part.Text)
		} else {
			has.size += len(part.Text)
			has.hash.Write(part.Text)
		}
		r.place(r.got, part.Place).size = has.size
		delete(r.quiet, left.Choice)
	}
	if left.End != nil {
		r.ended[left.Choice] = true
	}
}

// compare compares a part with what the client has at its place, and returns what lies beyond.
func (r *repeat) compare(part *openai.Part) (left []byte, err error) {
	has := r.has[part.Place]
	if part.Member == openai.Probabilities {
		return r.countOff(part, has), nil
	}
	text := openai.AppendText(nil, part.Text)
	if has == nil {
		return text, nil
	}
	got := r.place(r.got, part.Place)
	missing := max(0, has.size-got.size)
	same := text[:min(missing, len(text))]
	got.hash.Write(same)
	got.size += len(same)
	if missing > 0 && got.size == has.size && got.hash.Sum64() != has.hash.Sum64() {
		return nil, ErrDiverged
	}
	return text[len(same):], nil
}

// countOff leaves of a list of tokens with probabilities those that the client does not have.
func (r *repeat) countOff(part *openai.Part, has *growth) []byte {
	if has == nil {
		return part.Text
	}
	got := r.place(r.got, part.Place)
	missing := max(0, has.size-got.size)
	s := rawjson.Scanner{Data: part.Text}
	left := []byte{'['}
	s.Elements(func(i int) bool {
		from := s.Pos
		ok := s.Skip()
		if i >= missing {
			if len(left) > 1 {
				left = append(left, ',')
			}
			left = append(left, part.Text[from:s.Pos]...)
		} else {
			got.size++
		}
		return ok
	})
	if len(left) == 1 {
		return nil
	}
	return append(left, ']')
}

// over reports whether the client has the end of each choice.
func (r *repeat) over() bool { return len(r.ended) >= r.choices }

// pass gives the client an event of another replica under the name of its stream.
func (r *repeat) pass(out, data []byte) []byte {
	out = append(append(out, "data: "...), r.head...)
	return append(append(out, data[len(r.parts.Head):]...), "\n\n"...)
}
