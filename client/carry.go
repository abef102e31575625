package client

import (
	"bytes"
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

const (
	// resumeHeader says the client's use of a stream: "carry" keeps its events, "continue" asks for the rest of it.
	resumeHeader = "x-kvpilot-resume"
	// receivedMember holds these events, in the body that asks for the rest.
	receivedMember = "kvpilot_received"
	// maxCarried bounds the bytes kept of a stream. A longer one is not continued.
	maxCarried = 16 << 20
	// firstTries and laterTries bound how often a stream is asked for one time after another: before anything of it has come, and after.
	firstTries, laterTries = 3, 12
	firstPause, lastPause  = 50 * time.Millisecond, time.Second
)

// carrier keeps the events of a stream, so that another router can continue it.
type carrier struct {
	body     []byte
	received []byte // whole events, with their ids
	rest     []byte // an event that is not complete
	tries    int    // since the last event
}

// carry returns a carrier for requests whose streams routers continue; nil for any other, and where the caller decides itself about its
// stream.
func carry(ctx context.Context, path string, body []byte) *carrier {
	var asked struct {
		Stream bool            `json:"stream"`
		IDs    json.RawMessage `json:"return_token_ids"`
	}
	switch path {
	case "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses":
	default:
		return nil
	}
	if json.Unmarshal(body, &asked) != nil || !asked.Stream || asked.IDs != nil {
		return nil
	}
	if out, _ := metadata.FromOutgoingContext(ctx); len(out.Get(resumeHeader)) > 0 {
		return nil
	}
	return &carrier{body: body}
}

// ids are the ids that the caller did not ask for.
var ids = regexp.MustCompile(`"(prompt_token_ids|token_ids)":\[[0-9, ]*\]`)

// take takes the next bytes of the stream and returns whole events without ids for the caller.
func (c *carrier) take(part []byte) []byte {
	c.rest = append(c.rest, part...)
	at := bytes.LastIndex(c.rest, []byte("\n\n")) + 2
	if at < 2 {
		return nil
	}
	whole := c.rest[:at]
	c.received = append(c.received, whole...)
	c.tries = 0
	var out []byte
	for e := range bytes.SplitAfterSeq(whole, []byte("\n\n")) {
		out = append(out, withoutIDs(e)...)
	}
	c.rest = append([]byte(nil), c.rest[at:]...)
	return out
}

// withoutIDs is an event as the caller gets it: nothing when it is there for the ids alone.
func withoutIDs(e []byte) []byte {
	if bytes.HasPrefix(e, []byte(": ids ")) {
		return nil
	}
	plain := ids.ReplaceAll(e, []byte(`"$1":null`))
	if len(plain) != len(e) && bytes.Contains(e, []byte(`"delta":{}`)) && bytes.Contains(e, []byte(`"finish_reason":null`)) {
		return nil
	}
	return plain
}

// over reports whether the stream has come to its end.
func (c *carrier) over() bool {
	last := c.received[bytes.LastIndex(bytes.TrimRight(c.received, "\n"), []byte("\n\n"))+1:]
	for _, mark := range []string{"data: [DONE]", "event: message_stop", "event: response.completed", "event: response.incomplete"} {
		if bytes.Contains(last, []byte(mark)) {
			return true
		}
	}
	return false
}

// lost reports whether a stream that ended with err has lost its router, and another one may continue it.
func (c *carrier) lost(err error) bool {
	if status.Code(err) != codes.Unavailable || len(c.received) > maxCarried {
		return false
	}
	switch Reason(err) {
	case kvpilotv1.ErrorReason_ERROR_REASON_UNSPECIFIED, kvpilotv1.ErrorReason_ERROR_REASON_SHUTTING_DOWN, kvpilotv1.ErrorReason_ERROR_REASON_ROUTER_UNREACHABLE:
	default:
		return false
	}
	c.tries++
	return c.tries <= firstTries || len(c.received) > 0 && c.tries <= laterTries
}

// pause is the wait before the stream is asked for again.
func (c *carrier) pause() time.Duration { return min(firstPause<<min(c.tries-1, 10), lastPause) }

// request is the body for the next router, and the header that names its use.
func (c *carrier) request() (body []byte, how string) {
	if c.rest = nil; len(c.received) == 0 {
		return c.body, "carry"
	}
	received, _ := json.Marshal(string(c.received)) // a string always marshals
	open := strings.TrimSuffix(strings.TrimSpace(string(c.body)), "}")
	return append([]byte(open+`,"`+receivedMember+`":`), append(received, '}')...), "continue"
}
