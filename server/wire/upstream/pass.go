package upstream

import (
	"net/http"
	"strings"
)

// The tables of headers that pass between callers and engines. docs/security.md has them, with the reasons; a test compares the two.

// withheld names the client's headers that do not go to a replica: headers about the hop to kvpilot, the headers that kvpilot
// writes itself, the client's credentials, which are for kvpilot, browsers' headers about a page, clients' claims about proxies before
// them, and headers that servers and frameworks read in place of the path, the method or the address. Names are in canonical form;
// frameworks that read an underscore as a hyphen exist, so both are the same here.
func withheld(name string) bool {
	if strings.IndexByte(name, '_') >= 0 {
		name = http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
	}
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings", // the hop
		"Host", "Content-Length", "Expect", "Accept-Encoding", "User-Agent", "X-Request-Id", "X-Body-Truncated", // kvpilot's own
		"Proxy-Authenticate", "Proxy-Authorization", "Authorization", "X-Api-Key", "Cookie", // credentials
		"Origin", "Referer", "Baggage", // pages
		"Forwarded", "Via", "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "X-Remote-Addr", "X-Remote-Ip", "X-Remote-User", // proxies before
		"X-Originating-Ip", "X-Original-Forwarded-For", "True-Client-Ip", "Client-Ip", "Cf-Connecting-Ip", "Fastly-Client-Ip", "Remote-User", "Proxy",
		"X-Original-Url", "X-Original-Uri", "X-Original-Method", "X-Original-Host", "X-Rewrite-Url", "X-Rewrite-Uri", "X-Host", "X-Http-Host-Override", // another request
		"X-Http-Method-Override", "X-Http-Method", "X-Method-Override", "X-Script-Name", "X-Scheme", "X-Url-Scheme",
		"X-Data-Parallel-Rank", "Endpoint-Load-Metrics-Format": // the engine
		return true
	}
	return strings.HasPrefix(name, "X-Forwarded-") || strings.HasPrefix(name, "X-Envoy-") || strings.HasPrefix(name, "X-Accel-") ||
		strings.HasPrefix(name, "X-Sendfile") || strings.HasPrefix(name, "Sec-") || strings.HasPrefix(name, "Access-Control-") ||
		strings.HasPrefix(name, "Grpc-") || strings.HasPrefix(name, "X-Kvpilot-") || strings.HasPrefix(name, ":")
}

// withheldFromClient names the headers of a response that end here: all but the headers that describe the body, the engine's own figures,
// and the headers that the router itself reads. Names are in canonical form.
func withheldFromClient(name string) bool {
	switch name {
	case "Content-Type", "Content-Encoding", "Content-Language", "Content-Disposition", // the body
		"Openai-Processing-Ms", "Openai-Version", "Openai-Model", // figures
		"Sec-Websocket-Accept", "Sec-Websocket-Protocol", "Sec-Websocket-Extensions", // a WebSocket's handshake
		"Retry-After": // the router's own errors have one that is bounded
		return false
	}
	return true
}
