package guard

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc/codes"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// Protocols answers clients that speak the protocol of another address, in that protocol. grpc-go closes their connections
// without a word.
type Protocols struct{ metrics protocolMetrics }

type protocolMetrics struct {
	Refused instruments.Keyed[protocol] `metric:"kvpilot.guard.wrong_protocols" unit:"{connection}" by:"protocol" help:"Connections and calls with a protocol that their address does not serve, by protocol: HTTP/1.1, TLS or plain HTTP/2 at the gRPC address, gRPC at the others."`
}

// protocol is the protocol of a client at the wrong address.
type protocol int

const (
	http1 protocol = iota
	tlsHello
	plainHTTP2
	grpcCall
	protocols // how many there are
)

func (p protocol) String() string {
	return [...]string{http1: "http1", tlsHello: "tls", plainHTTP2: "http2", grpcCall: "grpc", protocols: "unknown"}[p]
}

// NewProtocols makes Protocols.
func NewProtocols(provider metric.MeterProvider) *Protocols {
	p := &Protocols{}
	instruments.Declare(provider, "server/edge/guard", &p.metrics)
	for what := range protocols {
		p.metrics.Refused.Know(what)
	}
	return p
}

func (p *Protocols) count(what protocol) { p.metrics.Refused.Add(what) }

// Greeting describes a gRPC address to clients that speak something else.
type Greeting struct {
	// Secure says that the address takes TLS only.
	Secure bool
	// REST is the REST surface's address; empty: there is none.
	REST string
}

// Greet has the connections of a gRPC server's listener answer other protocols.
func (p *Protocols) Greet(l net.Listener, g Greeting) net.Listener { return &greeter{l, p, g} }

type greeter struct {
	net.Listener
	protocols *Protocols
	greeting  Greeting
}

// Accept implements net.Listener.
func (g *greeter) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &greeted{Conn: c, by: g}, nil
}

// greeted is a connection whose first bytes are looked at. Before they arrive, nothing is sent: grpc-go writes its settings first, and a client of
// another protocol would take them for the answer. Until the handshake is over, one goroutine reads and writes.
type greeted struct {
	net.Conn
	by     *greeter
	looked bool
	early  []byte // written before the first bytes arrived
}

// Read implements net.Conn.
func (c *greeted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.looked || n == 0 {
		return n, err
	}
	c.looked = true
	if what, other := foreign(b[:n], c.by.greeting.Secure); other {
		c.by.protocols.count(what)
		c.answer(what)
		return 0, io.EOF
	}
	if len(c.early) > 0 {
		if _, err := c.Conn.Write(c.early); err != nil {
			return 0, err
		}
		c.early = nil
	}
	return n, err
}

// Write implements net.Conn.
func (c *greeted) Write(b []byte) (int, error) {
	if !c.looked {
		c.early = append(c.early, b...)
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// methods are how requests of HTTP/1 begin.
var methods = [...][]byte{
	[]byte("GET "), []byte("POST "), []byte("HEAD "), []byte("PUT "), []byte("PATCH "), []byte("DELETE "), []byte("OPTIONS "), []byte("CONNECT "), []byte("TRACE "),
}

// foreign returns the protocol of a client that does not speak gRPC, with or without TLS, by its first bytes.
func foreign(first []byte, secure bool) (protocol, bool) {
	for _, m := range methods {
		if bytes.HasPrefix(first, m) {
			return http1, true
		}
	}
	switch {
	case !secure && bytes.HasPrefix(first, []byte{22, 3}): // a handshake record of TLS 1
		return tlsHello, true
	case secure && bytes.HasPrefix(first, []byte("PRI *")):
		return plainHTTP2, true
	}
	return 0, false
}

const (
	// answerTime bounds how long a client with the wrong protocol takes to read its answer, and how long its request is read.
	answerTime = time.Second
	// answerDrain bounds the rest of that request, which is read so that the connection is not reset before the answer arrives.
	answerDrain = 256 << 10
)

// answer writes an answer of HTTP/1.1, whatever the client speaks: libraries of TLS and HTTP/2 then report that the server does not.
func (c *greeted) answer(what protocol) {
	e := apierror.New(apierror.RouteNotFound, c.by.greeting.text(what), nil)
	contentType, body := e.Body(apierror.OpenAI)
	status := http.StatusBadRequest
	if what == http1 {
		status = e.HTTPStatus()
	}
	if c.SetDeadline(time.Now().Add(answerTime)) != nil {
		return
	}
	_, err := fmt.Fprintf(c.Conn, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", status, http.StatusText(status), contentType, len(body), body)
	if err == nil {
		_, _ = io.CopyN(io.Discard, c.Conn, answerDrain)
	}
}

// text says what the address is, and where the client should go.
func (g Greeting) text(what protocol) string {
	switch what {
	case tlsHello:
		return "this is kvpilot's gRPC address (listen.grpc), which does not use TLS"
	case plainHTTP2:
		return "this is kvpilot's gRPC address (listen.grpc), which takes TLS only"
	case http1, grpcCall, protocols:
	}
	rest := "there is no REST address (listen.http)"
	if _, port, err := net.SplitHostPort(g.REST); err == nil {
		rest = "the REST address is at port " + port + " (listen.http)"
	}
	if g.Secure {
		rest += "; both take TLS only"
	}
	return "this is kvpilot's gRPC address (listen.grpc), which does not speak HTTP/1.1; " + rest + "; see https://github.com/kvpilot/kvpilot/blob/main/docs/api.md"
}

// RefuseGRPC answers gRPC calls at an address of another surface with UNIMPLEMENTED and the setting of the right one.
func (p *Protocols) RefuseGRPC(surface string, next http.Handler) http.Handler {
	message := "this is kvpilot's " + surface + "; gRPC is at its gRPC address (listen.grpc, by default port 9090)"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 || !isGRPC(r.Header) {
			next.ServeHTTP(w, r)
			return
		}
		p.count(grpcCall)
		h := w.Header() // an answer of trailers alone: its status is in the header
		h["Content-Type"] = []string{"application/grpc"}
		h["Grpc-Status"] = []string{strconv.Itoa(int(codes.Unimplemented))}
		h["Grpc-Message"] = []string{message}
		w.WriteHeader(http.StatusOK)
	})
}

func isGRPC(h http.Header) bool {
	for _, contentType := range h["Content-Type"] {
		if rest, ok := strings.CutPrefix(contentType, "application/grpc"); ok && (rest == "" || rest[0] == '+' || rest[0] == ';') {
			return true
		}
	}
	return false
}
