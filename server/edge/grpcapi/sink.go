package grpcapi

import (
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// sinkFor takes the router's answer to the caller: a REST client itself, or a stream of messages.
func sinkFor(out grpc.ServerStream) intake.Sink {
	if e := httpcall.From(out.Context()); e != nil {
		return e.Answer
	}
	return &messages{out: out}
}

// finish completes an answer: a gRPC caller gets one message even when the body is empty.
func finish(to intake.Sink, err error) error {
	if m, ok := to.(*messages); ok && err == nil && m.begun && !m.sent {
		return m.Write(nil)
	}
	return err
}

// messages is the Sink of a gRPC caller.
type messages struct {
	out         grpc.ServerStream
	contentType string
	begun, sent bool
}

var _ intake.Sink = (*messages)(nil)

// Begin implements router.Sink.
func (s *messages) Begin(status int, header http.Header) error {
	s.begun = true
	s.contentType = header.Get("Content-Type")
	md := metadata.MD{}
	if status != http.StatusOK {
		md.Set("x-http-status", strconv.Itoa(status))
	}
	for name, values := range header {
		if name == httpcall.HeaderRequestID || strings.HasPrefix(name, "X-Kvpilot-") || strings.HasPrefix(name, "X-Ratelimit-") {
			md[strings.ToLower(name)] = values
		}
	}
	return s.out.SetHeader(md)
}

// Write implements router.Sink.
func (s *messages) Write(p []byte) error {
	// grpc-go has encoded the message when SendMsg returns; instruments may look at it later, so each
	// piece gets a message of its own.
	m := &httpbody.HttpBody{Data: p}
	if !s.sent {
		m.ContentType, s.sent = s.contentType, true
	}
	return s.out.SendMsg(m)
}
