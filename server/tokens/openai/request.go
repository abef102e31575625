package openai

import (
	"fmt"
	"net/http"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// Params are the input of Read.
type Params struct {
	Route Route
	// Header holds the client's headers (or gRPC metadata); names match without case.
	Header http.Header
	// SessionHeaders names the headers that may carry a session, the first one first; none turns them off.
	SessionHeaders []string
	// Body is the request body; it must not change as long as the Request is in use.
	Body []byte
	// Limits bound the memory of the body.
	Limits Limits
	// Truncated says that Body may be a prefix of the client's body: the readable part is read, and nothing in it is refused.
	Truncated bool
}

// Request has the fields of a body that routing needs. Numbers that are absent, or that no engine would
// accept, are zero.
type Request struct {
	// Route is Params.Route; for RouteAny, the route that the body's shape stands for.
	Route Route
	Model string
	Wanted
	Prompt prompt.Prompt
	SessionHints
	Salt string
	// Priority is the engine's scheduling priority; smaller goes first.
	Priority int
	User     string
	// RequestID is the body's request_id; the X-Request-Id header wins over it.
	RequestID string
	// PreviousResponse is previous_response_id: the stored response this one continues.
	PreviousResponse string
	// KVTransfer is set when kv_transfer_params is present and not null.
	KVTransfer bool
	// Truncated is set when Body may be a prefix and was not read to its end; the part before that was read.
	Truncated bool
	// Body is the body as the client sent it.
	Body []byte

	members  []member
	end      int // the offset of the closing brace
	own      own
	expected int // the hint of the answer's length that counts
	imposed  []Edit
}

// Wanted is the form of the answer that the client asks for.
type Wanted struct {
	// Stream says that the answer comes as server-sent events.
	Stream bool
	// IncludeUsage says that the stream's last event will hold the usage.
	IncludeUsage bool
	// MaxTokens is the client's limit on generated tokens.
	MaxTokens int
	// N is the number of choices asked for, at least 1.
	N int
}

// SessionHints are the client's statements about the request's session.
type SessionHints struct {
	// Session is the session's name: the body's session_id, then a header, then vllm_xargs.session_id, then the session in
	// Anthropic's metadata.user_id, then prompt_cache_key. SessionSource says which of them it is, a header by its name.
	Session       string
	SessionSource string
	// SessionReturn is in how long the session's next request is expected, 0 when that is not said; SessionEnds says that
	// none follows.
	SessionReturn time.Duration
	SessionEnds   bool
}

// own has the body's own values where a header may say something else.
type own struct {
	session, xargs, cacheKey string
	priority                 int
	// expected and agentExpected are hints of the answer's length.
	expected, agentExpected int
}

// member is one top-level member of the body.
type member struct {
	name                 string
	key, start, valueEnd int
}

// Read reads a body. The error is always a *BadRequest; there is none where the body may be a prefix.
func Read(p Params) (*Request, error) {
	r := &reader{req: &Request{Route: p.Route, Wanted: Wanted{N: 1}, Body: p.Body}, limits: p.Limits, truncated: p.Truncated}
	r.s.Data = p.Body
	r.req.Prompt.Body = p.Body
	if err := r.body(); err != nil {
		if !p.Truncated {
			return nil, err
		}
		r.req.Truncated = true // only the part before the fault is there
	}
	r.finish()
	r.req.applyHeaders(p)
	return r.req, nil
}

// Present reports whether the body has a top-level member called name.
func (r *Request) Present(name string) bool { return r.lastMember(name) >= 0 }

// Raw returns the raw JSON of the top-level member called name, nil when it is absent.
func (r *Request) Raw(name string) []byte {
	if i := r.lastMember(name); i >= 0 {
		return r.Body[r.members[i].start:r.members[i].valueEnd]
	}
	return nil
}

// lastMember is the index of the member that counts: the last one of that name, -1 when there is none.
func (r *Request) lastMember(name string) int {
	for i := len(r.members) - 1; i >= 0; i-- {
		if r.members[i].name == name {
			return i
		}
	}
	return -1
}

// reader is one reading of a body.
type reader struct {
	s   rawjson.Scanner
	req *Request
	// field is the top-level member being read, for errors.
	field string
	// the values found under each of the three keys that can hold a prompt
	messages, prompt, input found
	maxCompletionTokens     int
	maxTokens               int
	maxOutputTokens         int
	truncated, partial      bool
	limits                  Limits
	refusal                 *BadRequest
}

// body walks over the whole text.
func (r *reader) body() error {
	s := &r.s
	s.Pos = len(s.Data) - len(rawjson.SkipMark(s.Data))
	c := s.Space()
	foreign := rawjson.ForeignEncoding(s.Data)
	switch {
	case foreign != "":
		return foreignEncoding(foreign)
	case s.AtEnd():
		return syntaxAt(s.Data, s.Pos, "", "the body is empty")
	case c != '{':
		if !s.Skip() {
			return r.err()
		}
		return invalidValue("", "The request body must be a JSON object.", s.Pos)
	}
	r.req.members = make([]member, 0, 16)
	ok := s.Members(r.member)
	if ok {
		r.req.end = s.Pos - 1
		if s.Space(); !s.AtEnd() {
			r.field = ""
			ok = s.Fail(s.Pos, "extra data after the object")
		}
	}
	if !ok && s.What == "" {
		if r.refusal != nil {
			return r.refusal
		}
		return r.refused()
	}
	if !ok {
		return r.err()
	}
	return nil
}

// err is the error for a body that is no JSON.
func (r *reader) err() error { return syntaxAt(r.s.Data, r.s.Pos, r.field, r.s.What) }

// refused is the error for a value that was read but cannot be used.
func (r *reader) refused() error {
	return invalidValue("model", "The model must be a string.", r.s.Pos)
}

// member reads one top-level member.
func (r *reader) member(name []byte, keyStart int) bool {
	m := member{name: memberName(name), key: keyStart, start: r.s.Pos}
	r.field = m.name
	if limit := r.limits.Members; limit > 0 && len(r.req.members) >= limit {
		return r.tooMany("", "members", limit)
	}
	ok := r.value(m.name)
	m.valueEnd = r.s.Pos
	if ok {
		r.req.members = append(r.req.members, m)
		r.field = ""
	}
	return ok
}

// value reads the value of the top-level member called name.
func (r *reader) value(name string) bool {
	switch name {
	case "model":
		return r.model()
	case "stream":
		return r.boolean(&r.req.Stream)
	case "stream_options":
		r.req.IncludeUsage = false
		return r.object(func(key []byte) bool {
			if string(key) == "include_usage" {
				return r.boolean(&r.req.IncludeUsage)
			}
			return r.s.Skip()
		})
	case "messages":
		return r.list(&r.messages)
	case "prompt":
		return r.promptValue(&r.prompt)
	case "input":
		return r.promptOrList(&r.input)
	case "max_completion_tokens":
		return r.positive(&r.maxCompletionTokens)
	case "max_tokens":
		return r.positive(&r.maxTokens)
	case "max_output_tokens":
		return r.positive(&r.maxOutputTokens)
	case "n":
		return r.positive(&r.req.N)
	case "priority":
		return r.integer(&r.req.own.priority)
	case "expected_output_tokens":
		return r.positive(&r.req.own.expected)
	case "nvext":
		return r.agentHints()
	case "truncate_prompt_tokens":
		return r.integer(&r.req.Prompt.Truncate)
	case "session_id":
		return r.string(&r.req.own.session)
	case "prompt_cache_key":
		return r.string(&r.req.own.cacheKey)
	case "cache_salt":
		return r.string(&r.req.Salt)
	case "user":
		return r.string(&r.req.User)
	case "request_id":
		return r.string(&r.req.RequestID)
	case "previous_response_id":
		return r.string(&r.req.PreviousResponse)
	case "kv_transfer_params":
		r.req.KVTransfer = r.s.Space() != 'n'
		return r.s.Skip()
	case "vllm_xargs":
		r.req.own.xargs = ""
		return r.object(func(key []byte) bool {
			if string(key) == "session_id" {
				return r.string(&r.req.own.xargs)
			}
			return r.s.Skip()
		})
	}
	return r.s.Skip()
}

// model reads the model's name; null is absent.
func (r *reader) model() bool {
	switch r.s.Space() {
	case '"':
		return r.string(&r.req.Model)
	case 'n':
		r.req.Model = ""
		return r.s.Skip()
	}
	start := r.s.Pos
	if !r.s.Skip() {
		return false
	}
	r.s.Pos = start
	return false // with no syntax error recorded: refused
}

// finish settles the fields that depend on several members.
func (r *reader) finish() {
	q := r.req
	if q.Truncated {
		r.partial = true
	}
	settler{r}.route()
	settler{r}.prompt()
	switch {
	case q.Route == RouteResponses:
		q.MaxTokens = r.maxOutputTokens
	case q.Route == RouteChat && r.maxCompletionTokens > 0:
		q.MaxTokens = r.maxCompletionTokens
	default:
		q.MaxTokens = r.maxTokens
	}
	q.N = min(max(q.N, 1), maxChoices)
	if q.User == "" && q.Route == RouteMessages {
		q.User = metadataUser(q.Raw("metadata"))
	}
	q.Prompt.Model, q.Prompt.Salt = q.Model, q.Salt
	if q.Truncated && q.Prompt.Kind != prompt.KindNone {
		q.Prompt.Body = q.readPart()
	}
}

// applyHeaders sets the fields that headers may decide.
func (r *Request) applyHeaders(p Params) {
	r.Session, r.SessionSource, r.Priority = "", "", r.own.priority
	header, name := SessionFrom(p.Header, p.SessionHeaders)
	for _, from := range [...]struct{ session, source string }{
		{r.own.session, "session_id"}, {header, name}, {r.own.xargs, "vllm_xargs"}, {userSession(r.User), "metadata"}, {r.own.cacheKey, "prompt_cache_key"},
	} {
		if from.session != "" && len(from.session) <= maxSession {
			r.Session, r.SessionSource = from.session, from.source
			break
		}
	}
	r.SessionReturn, r.SessionEnds = SessionReturn(p.Header)
	r.applyExpected(p.Header)
	if priority, ok := priorityHeader(p.Header); ok {
		r.Priority = priority
	}
}

// maxChoices is the largest n that vLLM accepts.
const maxChoices = 16384

// String names the request for logs; it shows nothing of the prompt.
func (r *Request) String() string {
	return fmt.Sprintf("%s %q (%d bytes, prompt %s)", r.Route, r.Model, len(r.Body), r.Prompt.Kind)
}
