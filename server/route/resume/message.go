package resume

import "errors"

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
	out, strange := f.message.Write(chat, f.promptTokens)
	switch {
	case strange == nil:
		return out, err
	case !begun:
		return nil, ErrNotTranslated
	}
	return out, ErrStrange
}
