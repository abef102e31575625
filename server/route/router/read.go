package router

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// reader reads the fields of bodies that routing needs.
type reader struct {
	bodies   *openai.Memory
	steering *steering
}

// readForm finds a form's model; what comes after it stays with the client.
func (rd *reader) readForm(rq *request) error {
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
		rq.story.Read(began, refused)
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
	rq.story.Read(began, nil)
	return nil
}

const (
	// maxFormHead bounds what is held of a form until its model is known. Engines take files of 25 MB
	// by default, so a client that sends the file first is served too.
	maxFormHead = 32 << 20
)

// read takes from the body what routing needs.
func (rd *reader) read(rq *request) error {
	began := time.Now()
	params := openai.Params{
		Route: rq.call.Route, Header: rq.call.Header, SessionHeaders: rq.set.sessions,
		Body: rq.call.Body, Truncated: rq.question.truncated(), Limits: openai.Limits{Members: rq.set.MaxMembers, Items: rq.set.MaxMessages},
	}
	req, err := rd.bodies.Read(params)
	if err == nil {
		req, err = rd.takeReceived(rq, req, params)
	}
	if err == nil && !rq.call.Steers {
		params.Body = req.Body
		req, err = rd.unsteered(rq, req, params)
	}
	if err != nil {
		refused := badRequest(err)
		rq.story.Read(began, refused)
		return refused
	}
	rq.parsed, rq.body = req, req.Body
	rq.story.Read(began, nil)
	return nil
}

// takeReceived reads the client's part in a stream that it carries, and leaves the request that began it.
func (rd *reader) takeReceived(rq *request, req *openai.Request, params openai.Params) (*openai.Request, error) {
	switch how := rq.call.Header.Get(headerResume); {
	case strings.EqualFold(how, "carry"):
		rq.keeps = req.Stream
		return req, nil
	case !strings.EqualFold(how, "continue"):
		return req, nil
	}
	events, body, ok := req.TakeReceived()
	if !ok || !req.Stream {
		return nil, &openai.BadRequest{
			Code: openai.CodeInvalidValue, Status: http.StatusBadRequest, Offset: -1, Param: openai.MemberReceived,
			Message: "With the header " + headerResume + ": continue the body is a streamed request with the events received so far in " + openai.MemberReceived + ", a string.",
		}
	}
	if rq.carried = (carried{keeps: true, has: events}); len(events) == 0 {
		rq.has = nil // it begins
	}
	call := *rq.call
	call.Body, params.Body = body, body
	rq.call = &call
	return rd.bodies.Read(params)
}

// unsteered is the request without what steers an engine's KV connector. Its body is read again: everything that is
// learned of it is learned of what the engine gets.
func (rd *reader) unsteered(rq *request, req *openai.Request, params openai.Params) (*openai.Request, error) {
	body, found := req.WithoutSteering()
	if found == 0 {
		return req, nil
	}
	rq.dropped |= found
	rd.steering.addAll(found)
	params.Body = body
	return rd.bodies.Read(params)
}

// checkID notes that the engine gets another request id than the client's.
func (rd *reader) checkID(rq *request) {
	if id := rq.engineID(); id != rq.call.RequestID {
		rq.dropped |= openai.SteersID
		rd.steering.addAll(openai.SteersID)
	}
}
