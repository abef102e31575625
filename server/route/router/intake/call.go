package intake

import (
	"io"
	"net/http"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// Caller is the sender of a call or of a question, with its rights.
type Caller struct {
	// Tenant is the owner of the caller's key; empty when keys are not in use.
	Tenant string
	// ShowOverlap lets the caller see what replicas hold of its prompt, although other tenants may have sent it.
	ShowOverlap bool
	// Steers lets the caller say what steers engines' KV connectors.
	Steers bool
}

// Call is one client's request for an engine's route, as a surface hands it over.
type Call struct {
	// Route is the API that the client asked for.
	Route openai.Route
	// Method, Path and RawQuery are the client's own; Path may hold an id ("/v1/responses/resp_1").
	Method   string
	Path     string
	RawQuery string
	// Header holds the client's headers, or a gRPC caller's metadata. It is read, never changed.
	Header http.Header
	// ContentType is the body's type when it is not the one in Header (a gRPC caller's HttpBody).
	ContentType string
	// Body is the request body; it belongs to the caller and must not change until Serve returns.
	Body []byte
	// Stream is a form's body (audio routes) where it is still coming, instead of Body; StreamSize is
	// its size, -1 when unknown. Serve reads it while it sends it on.
	Stream     Stream
	StreamSize int64
	// RequestID is the client's X-Request-Id, or one that the surface made.
	RequestID string
	// Client is the client's address, without a port; empty when it is not known.
	Client string
	Caller
	// Options constrain the choice.
	Options chooser.Options
	// Model and Priority are a gateway's word. Model is used in place of the body's; Priority, higher first, where the body has none.
	// Their zero values have no effect.
	Model    string
	Priority int
	// Rewrites may give the request another model than the body's; nil does not. It has no effect with Model.
	Rewrites Rewrites
	// Sidecars is set when the replica that a gateway sends the request to can have its prompt computed by the one that
	// Handoff.Prefiller names.
	Sidecars bool
	// Received is when the first byte of the request was seen.
	Received time.Time
}

// Rewrites have the models that requests get in place of those that they ask for; *registry.Rewrites does.
type Rewrites interface {
	// Targets returns the models for requests that ask for one, with their weights; none when that is the right one.
	Targets(asked string) []registry.Target
}

// Sink receives an answer. Its methods are called from one goroutine.
type Sink interface {
	// Begin is called once, before the first Write, with the status and the headers for the client.
	// The header belongs to the Sink from then on.
	Begin(status int, header http.Header) error
	// Write hands over the next bytes of the body, to be delivered at once. p is valid until
	// Write returns. An error means that the client disconnected.
	Write(p []byte) error
}

// Awaiter is a Sink that keeps its client's connection open while the answer is awaited and while it is silent. The Sink
// may send the client a head of its own before Begin.
type Awaiter interface {
	// Await is called at most once, before Begin, if the client asked for a stream of server-sent events.
	Await()
}

// Stream is a request body that is still coming.
type Stream interface {
	io.Reader
	// Pass is called once what is read from then on is forwarded and not kept.
	Pass()
}

// EnginePath is where the engine serves the call.
func (c *Call) EnginePath() string {
	if c.Path != "" {
		return c.Path
	}
	return c.Route.Path()
}

// EngineMethod is POST unless the client said otherwise.
func (c *Call) EngineMethod() string {
	if c.Method != "" {
		return c.Method
	}
	return http.MethodPost
}
