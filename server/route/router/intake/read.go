package intake

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
func (rd *reader) readForm(rq *Request) error {
	began := time.Now()
	contentType := rq.Call.ContentType
	if contentType == "" {
		contentType = rq.Call.Header.Get("Content-Type")
	}
	body, limit := io.Reader(bytes.NewReader(rq.Call.Body)), len(rq.Call.Body)+1
	if rq.Call.Stream != nil {
		body, limit = rq.Call.Stream, maxFormHead
	}
	form, err := openai.ReadForm(openai.Params{Route: rq.Call.Route, Header: rq.Call.Header, SessionHeaders: rq.Settings.sessions}, contentType, body, limit)
	if err != nil {
		refused := BadRequest(err)
		rq.Story.Read(began, refused)
		return refused
	}
	u := &upload{form: form, Head: form.Head, left: -1}
	if rq.Call.Stream == nil {
		form.Head = rq.Call.Body
		u.Head = form.Head
	} else if !form.Whole {
		u.rest = rq.Call.Stream
		if rq.Call.StreamSize >= 0 {
			u.left = rq.Call.StreamSize - int64(len(form.Head))
		}
	}
	rq.Parsed, rq.Upload = form.Request, u
	rq.Story.Read(began, nil)
	return nil
}

const (
	// maxFormHead bounds what is held of a form until its model is known. Engines take files of 25 MB
	// by default, so a client that sends the file first is served too.
	maxFormHead = 32 << 20
)

// read takes from the body what routing needs.
func (rd *reader) read(rq *Request) error {
	began := time.Now()
	params := openai.Params{
		Route: rq.Call.Route, Header: rq.Call.Header, SessionHeaders: rq.Settings.sessions,
		Body: rq.Call.Body, Truncated: rq.Question.IsCut(), Limits: openai.Limits{Members: rq.Settings.MaxMembers, Items: rq.Settings.MaxMessages},
	}
	req, err := rd.bodies.Read(params)
	if err == nil {
		req, err = rd.takeReceived(rq, req, params)
	}
	if err == nil && !rq.Call.Steers {
		params.Body = req.Body
		req, err = rd.unsteered(rq, req, params)
	}
	if err != nil {
		refused := BadRequest(err)
		rq.Story.Read(began, refused)
		return refused
	}
	rq.Parsed, rq.Body = req, req.Body
	rq.Story.Read(began, nil)
	return nil
}

// takeReceived reads the client's part in a stream that it carries, and leaves the request that began it.
func (rd *reader) takeReceived(rq *Request, req *openai.Request, params openai.Params) (*openai.Request, error) {
	switch how := rq.Call.Header.Get(HeaderResume); {
	case strings.EqualFold(how, "carry"):
		rq.Keeps = req.Stream
		return req, nil
	case !strings.EqualFold(how, "continue"):
		return req, nil
	}
	events, body, ok := req.TakeReceived()
	if !ok || !req.Stream {
		return nil, &openai.BadRequest{
			Code: openai.CodeInvalidValue, Status: http.StatusBadRequest, Offset: -1, Param: openai.MemberReceived,
			Message: "With the header " + HeaderResume + ": continue the body is a streamed request with the events received so far in " + openai.MemberReceived + ", a string.",
		}
	}
	if rq.carried = (carried{Keeps: true, Events: events}); len(events) == 0 {
		rq.Events = nil // it begins
	}
	call := *rq.Call
	call.Body, params.Body = body, body
	rq.Call = &call
	return rd.bodies.Read(params)
}

// unsteered is the request without what steers an engine's KV connector. Its body is read again: everything that is
// learned of it is learned of what the engine gets.
func (rd *reader) unsteered(rq *Request, req *openai.Request, params openai.Params) (*openai.Request, error) {
	body, found := req.WithoutSteering()
	if found == 0 {
		return req, nil
	}
	rq.Dropped |= found
	rd.steering.addAll(found)
	params.Body = body
	return rd.bodies.Read(params)
}

// checkID notes that the engine gets another request id than the client's.
func (rd *reader) checkID(rq *Request) {
	if id := rq.EngineID(); id != rq.Call.RequestID {
		rq.Dropped |= openai.SteersID
		rd.steering.addAll(openai.SteersID)
	}
}
