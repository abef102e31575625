package intake

import (
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// maxReplay bounds the bytes of an upload that are kept for another attempt.
const maxReplay = 256 << 10

// upload is a body on its way to a replica: what was read of it, and the rest.
type upload struct {
	form *openai.Form
	Head []byte
	rest Stream // nil when head is the whole
	left int64  // bytes of rest, -1 when unknown
	// Spent is set once head and rest are no longer the whole body, which then cannot be sent again.
	Spent bool
}

// rename puts the model's name on the replica into the form.
func (u *upload) rename(model string) { u.Head = u.form.HeadFor(model) }

// size is the whole body's, as far as it is known.
func (u *upload) size() int { return len(u.Head) + int(max(u.left, 0)) }

// Into makes the upload the body of a request to a replica.
func (u *upload) Into(out *upstream.Request) {
	out.Body = u.Head
	out.Stream, out.StreamSize, out.Once = nil, 0, false
	if u.rest != nil && u.left != 0 {
		out.Stream, out.StreamSize = u, u.left
		out.Once = u.left < 0 || len(u.Head)+int(u.left) > maxReplay
	}
	out.Again = func() bool {
		if u.Spent {
			return false
		}
		u.Into(out)
		return true
	}
}

// Read gives the rest of the body, and keeps it as long as it is small.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.rest.Read(p)
	if u.left >= 0 {
		u.left -= int64(n)
	}
	switch {
	case u.Spent:
	case len(u.Head)+n <= maxReplay:
		u.Head = append(u.Head, p[:n]...)
	case n > 0:
		u.Spent = true
		u.rest.Pass()
	}
	if IsEnd(err) {
		u.left = 0
	}
	return n, err
}
