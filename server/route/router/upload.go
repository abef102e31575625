package router

import (
	"bytes"
	"errors"
	"io"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

const (
	// maxFormHead bounds what is held of a form until its model is known. Engines take files of 25 MB
	// by default, so a client that sends the file first is served too.
	maxFormHead = 32 << 20
	// maxReplay bounds what is kept of an upload for another attempt.
	maxReplay = 256 << 10
)

// Stream is a request body that is still coming.
type Stream interface {
	io.Reader
	// Pass is called once what is read from then on is forwarded and not kept.
	Pass()
}

// upload is a body on its way to a replica: what was read of it, and the rest.
type upload struct {
	form *openai.Form
	head []byte
	rest Stream // nil when head is the whole
	left int64  // bytes of rest, -1 when unknown
	// spent is set once head and rest are no longer the whole body, which then cannot be sent again.
	spent bool
}

// readForm finds a form's model; what comes after it stays with the client.
func (in *intake) readForm(rq *request) error {
	began := time.Now()
	contentType := rq.call.ContentType
	if contentType == "" {
		contentType = rq.call.Header.Get("Content-Type")
	}
	body, limit := io.Reader(bytes.NewReader(rq.call.Body)), len(rq.call.Body)+1
	if rq.call.Stream != nil {
		body, limit = rq.call.Stream, maxFormHead
	}
	form, err := openai.ReadForm(openai.Params{Route: rq.call.Route, Header: rq.call.Header, SessionHeaders: rq.set.sessions}, contentType, body, limit)
	if err != nil {
		refused := badRequest(err)
		rq.story.read(began, refused)
		return refused
	}
	u := &upload{form: form, head: form.Head, left: -1}
	if rq.call.Stream == nil {
		form.Head = rq.call.Body
		u.head = form.Head
	} else if !form.Whole {
		u.rest = rq.call.Stream
		if rq.call.StreamSize >= 0 {
			u.left = rq.call.StreamSize - int64(len(form.Head))
		}
	}
	rq.parsed, rq.upload = form.Request, u
	rq.story.read(began, nil)
	return nil
}

// rename puts the model's name on the replica into the form.
func (u *upload) rename(model string) { u.head = u.form.HeadFor(model) }

// size is the whole body's, as far as it is known.
func (u *upload) size() int { return len(u.head) + int(max(u.left, 0)) }

// into makes the upload the body of a request to a replica.
func (u *upload) into(out *upstream.Request) {
	out.Body = u.head
	out.Stream, out.StreamSize, out.Once = nil, 0, false
	if u.rest != nil && u.left != 0 {
		out.Stream, out.StreamSize = u, u.left
		out.Once = u.left < 0 || len(u.head)+int(u.left) > maxReplay
	}
	out.Again = func() bool {
		if u.spent {
			return false
		}
		u.into(out)
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
	case u.spent:
	case len(u.head)+n <= maxReplay:
		u.head = append(u.head, p[:n]...)
	case n > 0:
		u.spent = true
		u.rest.Pass()
	}
	if isEnd(err) {
		u.left = 0
	}
	return n, err
}

// isEnd reports whether a body or an answer has come whole: a wrapped io.EOF is one that was cut off.
func isEnd(err error) bool { return err == io.EOF }

// bodyFault is the client's own end of an upload: too large, too slow, or gone.
func bodyFault(err error) (*apierror.Error, bool) {
	return errors.AsType[*apierror.Error](err)
}
