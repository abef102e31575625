package gateway

import (
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/router/direct"
)

// upgrade is a client that waits for its connection to become a WebSocket.
type upgrade struct {
	rq      *request
	tunnels *tunnels
}

var _ direct.Upgrade = upgrade{}

// takeUpgrade offers the client's connection to the handler, when the request asks for it. The handler rejects any
// other.
func (t *tunnels) takeUpgrade(rq *request, r *http.Request) error {
	if hasBody(r) {
		return apierror.New(apierror.InvalidBody, "the handshake of a WebSocket has no body", nil)
	}
	if r.Method == http.MethodGet && r.ProtoMajor == 1 && r.ProtoMinor > 0 &&
		lists(r.Header["Connection"], "upgrade") && lists(r.Header["Upgrade"], "websocket") && r.Header.Get("Sec-Websocket-Key") != "" {
		rq.call.Upgrade = upgrade{rq, t}
	}
	return nil
}

// lists reports whether a header with lists as values names a word.
func lists(values []string, word string) bool {
	for _, line := range values {
		for one := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(one), word) {
				return true
			}
		}
	}
	return false
}

// Switch implements router.Upgrade.
func (u upgrade) Switch(header http.Header) (io.ReadWriteCloser, error) {
	rq := u.rq
	one := &tunnel{stall: rq.config.StallTimeout}
	if !u.tunnels.add(one) {
		return nil, apierror.New(apierror.ShuttingDown, "the router is stopping", nil, apierror.WithRetryAfter(time.Second))
	}
	conn, buffered, err := rq.out.control.Hijack()
	if err != nil {
		u.tunnels.drop(one)
		return nil, err
	}
	rq.tunnel, rq.out.status = one, http.StatusSwitchingProtocols
	one.take(conn, buffered.Reader)
	for name, values := range rq.out.w.Header() { // of the gateway's own: the request's id, and the headers that pages of other origins may read
		if header[name] == nil {
			header[name] = values
		}
	}
	for name := range header {
		if hopByHop(name) {
			delete(header, name)
		}
	}
	var head strings.Builder
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n")
	_ = header.Write(&head) // a Builder takes everything
	head.WriteString("\r\n")
	if _, err := io.WriteString(one, head.String()); err != nil {
		one.Close() //nolint:errcheck // the client disconnected
		return nil, err
	}
	return one, nil
}
