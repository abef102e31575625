package extproc

import (
	"context"
	"net/http"
	"strings"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvpilot/kvpilot/server/route/router"
)

// beginAnswer reports the head of the answer, and adds the headers that explain the choice.
func (x *exchange) beginAnswer(ctx context.Context, m *question, head *extproc.HttpHeaders) error {
	if x.handoff == nil || x.begun {
		return x.send(responseHeaders(nil))
	}
	x.moved(ctx, served(m.GetMetadataContext()))
	x.begun = true
	f := fieldsOf(head.GetHeaders())
	x.request.status = f.status()
	explained := x.handoff.Begin(router.Head{Status: f.status(), Header: f.header, Unreached: unreached(f)})
	if head.GetEndOfStream() {
		x.endAnswer()
	}
	return x.send(responseHeaders(&extproc.CommonResponse{HeaderMutation: mutation(explained, nil)}))
}

// headerServiceTime is on answers that Envoy has from a replica, not on those that it makes itself.
const headerServiceTime = "X-Envoy-Upstream-Service-Time"

// unreached reports whether Envoy made the answer because it could not reach the replica. A gateway that hides Envoy's headers shows
// no difference: then the status counts as the replica's.
func unreached(f fields) bool {
	return f.status() == http.StatusServiceUnavailable && strings.EqualFold(f.header.Get("Server"), "envoy") && f.header.Get(headerServiceTime) == "" &&
		strings.HasPrefix(f.header.Get("Content-Type"), "text/plain")
}

// moved moves the booking to the replica that served the request, when the gateway reports another one than the first that it was named.
func (x *exchange) moved(ctx context.Context, address string) {
	if address == "" {
		return
	}
	r, ok := x.server.endpoints.find(ctx, x.server.params.Fleet.Snapshot(), address)
	if !ok || r.ID == x.handoff.Replica().ID {
		return
	}
	x.server.metrics.Elsewhere.Add(ctx, 1)
	x.handoff.Served(ctx, r.ID)
}

// writeAnswer reports a piece of the answer, and passes it back.
func (x *exchange) writeAnswer(b *extproc.HttpBody) error {
	if x.handoff != nil && !x.whole {
		x.handoff.Write(b.GetBody())
	}
	if b.GetEndOfStream() {
		x.endAnswer()
	}
	if !isDuplex(x.modes.response) {
		return x.send(responseBody(nil))
	}
	return pieces(b.GetBody(), int(x.server.config.ChunkBytes), b.GetEndOfStream(), func(piece []byte, end bool) error {
		return x.send(responseBody(streamed(piece, end)))
	})
}

// endAnswer notes that the answer is whole.
func (x *exchange) endAnswer() { x.whole = true }
