package resume

import (
	"bytes"
	"errors"
	"regexp"
	"slices"

	"github.com/kvpilot/kvpilot/server/tokens/messages"
)

// ErrNotTranslated is why the engine is asked for the message itself: its answer to the chat is not followed, or is that to another prompt. The client
// has nothing of it.
var ErrNotTranslated = errors.New("the engine's answer to the message as a chat is not the one to the message")

// sayMessage turns events of a chat into events of the message. Until it has returned something, an answer that is not followed, or whose prompt is
// another one, is ErrNotTranslated.
func sayMessage(f *Follower, chat []byte, err error) ([]byte, error) {
	begun := f.message.Begun()
	if !begun && len(chat) > 0 && (f.raw || f.lost != NotLost || f.prompt != nil && f.p.Known != nil && !equal(f.prompt, f.p.Known)) {
		return nil, ErrNotTranslated
	}
	if f.raw {
		return nil, ErrStrange
	}
	write := f.message.Write
	if f.p.Shown {
		write = func(chat []byte, promptTokens int) ([]byte, error) { return carry(f.message, chat, promptTokens) }
	}
	out, strange := write(chat, f.promptTokens)
	if len(f.ahead) > 0 {
		out, f.ahead = slices.Concat(f.ahead, out), nil
	}
	switch {
	case strange == nil:
		return out, err
	case !begun:
		return nil, ErrNotTranslated
	}
	return out, ErrStrange
}

// chunkComment begins a comment for a client that keeps the events of a message: the chunk of the chat, with its ids, which the events behind it were
// made of. It has the form of the comments that such clients keep and do not show.
const chunkComment = ": ids {"

// carry writes events of a chat as events of the message, each behind its chunk.
func carry(as *messages.Stream, chat []byte, promptTokens int) ([]byte, error) {
	var all []byte
	for len(chat) > 0 {
		n := bytes.Index(chat, []byte("\n\n")) + 2
		if n < 2 {
			n = len(chat)
		}
		if data, ok := bytes.CutPrefix(chat[:n], []byte("data: ")); ok {
			all = append(append(all, ": ids "...), data...)
		}
		events, err := as.Write(chat[:n], promptTokens)
		if all = append(all, events...); err != nil {
			return all, err
		}
		chat = chat[n:]
	}
	return all, nil
}

// takeMessage takes a client's events of a message, with the chunks that they were made of. Events that the client lacks are ahead of the rest.
func takeMessage(f *Follower, received []byte) {
	var made, has []byte
	for len(received) > 0 {
		n := bytes.Index(received, []byte("\n\n")) + 2
		if n < 2 {
			break // the client has no use of a part of an event
		}
		e := received[:n]
		received = received[n:]
		if e[0] != ':' {
			has = append(has, e...)
			continue
		}
		if bytes.HasPrefix(e, []byte(chunkComment)) || string(e) == ": ids [DONE]\n\n" {
			e = append([]byte("data: "), e[len(": ids "):]...)
		} else if !bytes.HasPrefix(e, []byte(withdrawn)) {
			continue
		}
		out, err := f.feed(e)
		if err == nil {
			out, err = f.message.Write(out, f.promptTokens)
		}
		if err != nil {
			f.Lose(LostForm)
			return
		}
		if e[0] != ':' {
			made = append(made, out...)
		}
	}
	rest, ok := behind(made, has)
	if !ok {
		f.Lose(LostForm) // a client says so, and its chunks another thing
		return
	}
	f.ahead = bytes.Clone(rest)
}

// signature is the part of a message's events that is another one each time.
var signature = regexp.MustCompile(`"signature":"[0-9a-f]*"`)

// behind returns the events of made after as many as has has. It is false where those are other events.
func behind(made, has []byte) ([]byte, bool) {
	n := bytes.Count(has, []byte("\n\n"))
	rest := made
	for range n {
		at := bytes.Index(rest, []byte("\n\n"))
		if at < 0 {
			return nil, false
		}
		rest = rest[at+2:]
	}
	nothing := []byte(`"signature":""`)
	return rest, bytes.Equal(signature.ReplaceAll(made[:len(made)-len(rest)], nothing), signature.ReplaceAll(has, nothing))
}
