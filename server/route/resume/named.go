package resume

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// Bounds of what a follower of named events keeps.
const (
	maxNamedIDs = 1024
	maxIDBytes  = 64 << 10
	maxClosing  = 256 << 10
)

// named follows a stream of /v1/messages or /v1/responses, whose events have names. When its replica dies, another one is asked for the whole
// answer, which is compared with the one that the client has, event by event and place by place; what lies beyond is passed on
// with the ids, the time and the numbers of the client's stream. Random ids are not compared, nor usage, nor into how many events a text is cut.
type named struct {
	event openai.Named
	seed  maphash.Seed
	// has is what the client has, got what another replica has repeated of it.
	has, got course
	// again: another replica repeats the answer; met: it has repeated all that the client has.
	again, met bool
	names      names
	// closing are whole events that say that a part of the answer is over. The client gets them with the next event: an engine sends them, too, of
	// an answer that it aborts.
	closing []byte
	// sequence is the number of the client's next event, created the time of its response.
	sequence int
	created  []byte
	// stopped: the client has the stop reason; over: it has the last event.
	stopped, over bool
	text          []byte // scratch
}

// course is how far an answer has come: how many steps, the last of which may be a place that grows.
type course struct {
	hash  maphash.Hash
	steps int
	// run is the place that grows, 0 when none does, and size how far; total is how far all have grown.
	run         uint64
	size, total int
}

func (c *course) step(same []byte) {
	c.end()
	_, _ = c.hash.Write(same) // never fails
	c.steps++
}

func (c *course) grow(run uint64, text []byte) {
	if c.run != run {
		c.end()
		c.number(run)
		c.run = run
		c.steps++
	}
	_, _ = c.hash.Write(text) // never fails
	c.size += len(text)
	c.total += len(text)
}

// end ends the place that grows.
func (c *course) end() {
	if c.run != 0 {
		c.number(uint64(c.size))
	}
	c.run, c.size = 0, 0
}

func (c *course) number(n uint64) {
	var raw [8]byte
	binary.LittleEndian.PutUint64(raw[:], n)
	_, _ = c.hash.Write(raw[:]) // never fails
}

// at reports whether both are equally far.
func (c *course) at(o *course) bool { return c.steps == o.steps && c.run == o.run && c.size == o.size }

// names are the ids of a stream: the client's in the order in which it got them, and the engine's that came at the same places.
type names struct {
	client, engine [][]byte
	bytes          int
}

// add notes the ids of an event. It is false when there are too many.
func (n *names) add(ids [][]byte, again bool) bool {
	for _, id := range ids {
		if again {
			if n.find(id) >= 0 {
				continue
			}
			n.engine = append(n.engine, bytes.Clone(id))
			if len(n.engine) <= len(n.client) {
				continue
			}
		} else if slices.ContainsFunc(n.client, func(o []byte) bool { return bytes.Equal(o, id) }) {
			continue
		}
		n.client = append(n.client, bytes.Clone(id))
		if n.bytes += len(id); len(n.client) > maxNamedIDs || n.bytes > maxIDBytes {
			return false
		}
	}
	return len(n.engine) <= maxNamedIDs
}

func (n *names) find(id []byte) int {
	return slices.IndexFunc(n.engine, func(o []byte) bool { return bytes.Equal(o, id) })
}

// of returns the client's id for the engine's.
func (n *names) of(id []byte) []byte {
	if i := n.find(id); i >= 0 && i < len(n.client) {
		return n.client[i]
	}
	return id
}

func newNamed() *named {
	n := &named{seed: maphash.MakeSeed()}
	n.has.hash.SetSeed(n.seed)
	return n
}

// response is the name of a response that its engine keeps, empty before the client has it.
func (n *named) response(api prompt.API) string {
	if n == nil || api != prompt.APIResponses || n.created == nil {
		return ""
	}
	return string(openai.AppendText(nil, n.names.client[0])) // the first event has the response
}

// begin announces another engine's answer to the same request.
func (n *named) begin() {
	n.again, n.met = true, n.has.steps == 0
	n.got = course{}
	n.got.hash.SetSeed(n.seed)
	n.names.engine, n.closing = nil, n.closing[:0]
}

func (n *named) clone() *named {
	if n == nil {
		return nil
	}
	c := *n
	c.event, c.text, c.closing = openai.Named{}, nil, bytes.Clone(n.closing)
	c.names.client, c.names.engine = slices.Clone(n.names.client), slices.Clone(n.names.engine)
	return &c
}

// isShort reports whether little of the answer is there, and all of it was repeated where it had to be.
func (n *named) isShort() bool {
	return n.has.total <= shortRepeat && (!n.again || n.met)
}

// read takes one whole event, with what stands before its data, and appends to out what the client gets of it.
func (n *named) read(out, e, head, data []byte, halted func() bool) ([]byte, error) {
	if string(data) == "[DONE]" {
		return out, nil // behind an error, or too early
	}
	if !n.event.Read(data) || n.event.Kind == openai.NamedOdd || len(n.closing) > maxClosing {
		return out, ErrStrange
	}
	switch ev := &n.event; ev.Kind {
	case openai.NamedFault:
		if ev.Fault >= 500 {
			return out, ErrFailed
		}
		return out, ErrStrange
	case openai.NamedAborted:
		return out, ErrAborted
	case openai.NamedQuiet:
		if n.again {
			return out, nil
		}
		n.numbered()
		return append(out, e...), nil
	case openai.NamedCloses:
		n.closing = append(n.closing, e...)
		return out, nil
	case openai.NamedEnd:
		if halted != nil && halted() {
			return out, ErrAborted
		}
	case openai.NamedStep, openai.NamedGrows, openai.NamedFinish, openai.NamedOdd:
	}
	out, err := n.close(out)
	if err != nil {
		return out, err
	}
	n.event.Read(data) // closing has read others
	if out, err = n.take(out, e, head); err != nil {
		return out, err
	}
	switch n.event.Kind {
	case openai.NamedFinish:
		n.stopped = !n.again || n.met
	case openai.NamedEnd:
		if n.over = !n.again || n.met; !n.over {
			return out, ErrDiverged
		}
	default:
	}
	return out, nil
}

// close takes the events that were withheld.
func (n *named) close(out []byte) (_ []byte, err error) {
	list := n.closing
	for len(list) > 0 {
		at := bytes.Index(list, []byte("\n\n")) + 2
		e := list[:at]
		list = list[at:]
		head, data, _ := cutEvent(e)
		n.event.Read(data) // it was read before
		if out, err = n.take(out, e, head); err != nil {
			return out, err
		}
	}
	n.closing = n.closing[:0]
	return out, nil
}

// withheld are the events that the client gets with the next one.
func (n *named) withheld() []byte {
	if n == nil {
		return nil
	}
	return n.closing
}

// cutEvent returns what stands before the data of an event of at most a name and one line of data, and the data.
func cutEvent(e []byte) (head, data []byte, ok bool) {
	at := 0
	if bytes.HasPrefix(e, []byte("event: ")) {
		at = bytes.IndexByte(e, '\n') + 1
	}
	if at > len(e)-2 {
		return nil, nil, false
	}
	data, ok = bytes.CutPrefix(e[at:len(e)-2], []byte("data: "))
	return e[:at], data, ok && bytes.IndexByte(data, '\n') < 0
}

// numbered notes the number of an event that the client gets as it is.
func (n *named) numbered() {
	if n.event.Sequence != nil {
		n.sequence++
	}
}

// take takes the event that was read, with what stands before its data, and appends to out what the client gets of it.
func (n *named) take(out, e, head []byte) ([]byte, error) {
	ev := &n.event
	if n.again && !n.met {
		return n.repeat(out, head)
	}
	if !n.names.add(ev.IDs, n.again) {
		return out, ErrStrange
	}
	if ev.Kind == openai.NamedGrows {
		n.text = openai.AppendText(n.text[:0], ev.Text)
		n.has.grow(n.place(), n.text)
	} else {
		n.has.step(ev.Same)
	}
	if n.again {
		return n.forward(out, head, nil), nil
	}
	if n.created == nil && ev.Created != nil && len(n.names.client) > 0 {
		n.created = bytes.Clone(ev.Created)
	}
	n.numbered()
	return append(out, e...), nil
}

// place stands for the place that grows by the event.
func (n *named) place() uint64 { return maphash.Bytes(n.seed, n.event.Same) | 1 }

// forward gives the client another engine's event under the names of its own stream, of a text only rest where that is not nil.
func (n *named) forward(out, head, rest []byte) []byte {
	out = append(append(out, head...), "data: "...)
	out = n.event.For(out, &openai.Client{ID: n.names.of, Created: n.created, Sequence: n.sequence, Rest: rest})
	n.numbered()
	return append(out, "\n\n"...)
}

// repeat compares the event with what the client has.
func (n *named) repeat(out, head []byte) ([]byte, error) {
	ev := &n.event
	if !n.names.add(ev.IDs, true) {
		return out, ErrDiverged
	}
	if ev.Kind != openai.NamedGrows {
		n.got.step(ev.Same)
		return out, n.compare()
	}
	text, run, before := openai.AppendText(n.text[:0], ev.Text), n.place(), n.got.size
	n.text = text
	steps := n.got.steps
	if n.got.run != run {
		steps++
		before = 0
	}
	if steps != n.has.steps {
		n.got.grow(run, text)
		return out, n.compare()
	}
	same := text[:min(len(text), max(0, n.has.size-before))]
	n.got.grow(run, same)
	if err := n.compare(); err != nil {
		return out, err
	}
	rest := text[len(same):]
	if len(rest) == 0 {
		return out, nil
	}
	if !n.met { // the client has less of this place, and more behind it
		return out, ErrDiverged
	}
	n.has.grow(run, rest)
	return n.forward(out, head, rest), nil
}

// compare notes that another engine has repeated all that the client has. It fails when that is not the same.
func (n *named) compare() error {
	switch {
	case n.got.at(&n.has):
		if n.got.hash.Sum64() != n.has.hash.Sum64() {
			return ErrDiverged
		}
		n.met = true
	case n.got.steps > n.has.steps:
		return ErrDiverged
	case n.got.steps == n.has.steps && n.got.run != n.has.run:
		return ErrDiverged
	}
	return nil
}

// ending is what a message lacks that has its stop reason; false for any other stream.
func (n *named) ending() ([]byte, bool) {
	if !n.stopped || n.over {
		return nil, false
	}
	n.over = true
	return append(n.withheld(), "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"...), true
}
