package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Chat has a chat completion answered that is not streamed; body and answer are JSON as the
// REST route takes and gives them.
func (c *Client) Chat(ctx context.Context, body []byte) ([]byte, error) {
	return c.Post(ctx, "/v1/chat/completions", body)
}

// Completion has a completion answered that is not streamed.
func (c *Client) Completion(ctx context.Context, body []byte) ([]byte, error) {
	return c.Post(ctx, "/v1/completions", body)
}

// ChatStream has a chat completion answered as a stream; the body must ask for one.
func (c *Client) ChatStream(ctx context.Context, body []byte) (*Stream, error) {
	return c.Open(ctx, "/v1/chat/completions", body)
}

// CompletionStream has a completion answered as a stream; the body must ask for one.
func (c *Client) CompletionStream(ctx context.Context, body []byte) (*Stream, error) {
	return c.Open(ctx, "/v1/completions", body)
}

// Post sends a JSON body to one of the inference routes, named by its REST path, and returns
// the whole answer.
func (c *Client) Post(ctx context.Context, path string, body []byte) ([]byte, error) {
	s, err := c.Open(ctx, path, body)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var answer []byte
	for {
		part, err := s.Next()
		if errors.Is(err, io.EOF) {
			return answer, nil
		}
		if err != nil {
			return nil, err
		}
		answer = append(answer, part...)
	}
}

type openFunc func(context.Context, *httpbody.HttpBody, ...grpc.CallOption) (grpc.ServerStreamingClient[httpbody.HttpBody], error)

// route finds the RPC behind a REST path.
func (c *Client) route(path string) openFunc {
	switch path {
	case "/v1/chat/completions":
		return c.inference.ChatCompletions
	case "/v1/completions":
		return c.inference.Completions
	case "/v1/responses":
		return c.inference.Responses
	case "/v1/messages":
		return c.inference.Messages
	case "/v1/messages/count_tokens":
		return c.inference.CountMessageTokens
	case "/v1/embeddings":
		return c.inference.Embeddings
	case "/v1/rerank", "/rerank", "/v2/rerank":
		return c.inference.Rerank
	case "/v1/score", "/score":
		return c.inference.Score
	case "/classify":
		return c.inference.Classify
	case "/pooling":
		return c.inference.Pooling
	case "/inference/v1/generate":
		return c.inference.Generate
	}
	return nil
}

// Open sends a JSON body to one of the inference routes, named by its REST path, and returns
// the answer as it comes. Close the stream when it is not read to its end.
//
// A stream of a chat, completion, message or response whose router stops or dies is continued by the router that the connection finds next, wherever that is
// possible exactly: the caller has one stream. Its events are kept for that, at most 16 MiB. The header x-kvpilot-resume (WithHeaders), with
// any value, turns that off.
func (c *Client) Open(ctx context.Context, path string, body []byte) (*Stream, error) {
	open := c.route(path)
	if open == nil {
		return nil, fmt.Errorf("no inference route has the path %s", path)
	}
	s := &Stream{carrier: carry(ctx, path, body)}
	ctx, s.cancel = context.WithCancel(ctx)
	how := ""
	if s.carrier != nil {
		how = "carry"
	}
	s.ask = func(body []byte, how string, after time.Duration) (err error) {
		if after > 0 {
			select {
			case <-time.After(after):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		asks := ctx
		if how != "" {
			asks = metadata.AppendToOutgoingContext(ctx, resumeHeader, how)
		}
		s.rpc, err = open(asks, &httpbody.HttpBody{ContentType: "application/json", Data: body})
		return err
	}
	if err := s.ask(body, how, 0); err != nil {
		s.cancel()
		return nil, err
	}
	return s, nil
}

// Stream is an answer that is still coming. It is for one reader.
type Stream struct {
	rpc    grpc.ServerStreamingClient[httpbody.HttpBody]
	cancel context.CancelFunc
	// ask sends the request, with a header for the use of its stream.
	ask func(body []byte, how string, after time.Duration) error
	// carrier keeps the events, so that another router can continue; nil for an answer that is not continued.
	carrier *carrier
	kind    string
	rest    []byte // bytes of events that are not complete
	events  [][]byte
}

// Next returns the next bytes as the replica sent them, at whatever boundaries, or whole events of a stream that may be continued; io.EOF after
// the last. The slice is the caller's.
func (s *Stream) Next() ([]byte, error) {
	for {
		m, err := s.rpc.Recv()
		if err != nil {
			if s.carrier != nil {
				err = s.recover(err)
			}
			if err != nil {
				s.cancel()
				return nil, err
			}
			continue
		}
		if s.kind == "" {
			if s.kind = m.GetContentType(); !strings.HasPrefix(s.kind, "text/event-stream") {
				s.carrier = nil
			}
		}
		if s.carrier == nil {
			return m.GetData(), nil
		}
		if part := s.carrier.take(m.GetData()); len(part) > 0 {
			return part, nil
		}
	}
}

// recover has another router continue the stream, which ended with err. It returns the error for the caller.
func (s *Stream) recover(err error) error {
	if errors.Is(err, io.EOF) {
		return err
	}
	for s.carrier.lost(err) {
		if s.carrier.over() {
			return io.EOF
		}
		body, how := s.carrier.request()
		if s.ask(body, how, s.carrier.pause()) == nil {
			return nil
		}
	}
	return err
}

// Event returns the data of the next server-sent event, without "data: "; io.EOF after the last
// one. The end mark [DONE] is not returned. Do not mix it with Next.
func (s *Stream) Event() ([]byte, error) {
	for len(s.events) == 0 {
		part, err := s.Next()
		if err != nil {
			return nil, err
		}
		s.split(part)
	}
	ev := s.events[0]
	s.events = s.events[1:]
	return ev, nil
}

// split cuts complete events off the bytes received.
func (s *Stream) split(part []byte) {
	s.rest = append(s.rest, part...)
	for {
		i := bytes.Index(s.rest, []byte("\n\n"))
		if i < 0 {
			return
		}
		for line := range bytes.Lines(s.rest[:i]) {
			data, ok := bytes.CutPrefix(bytes.TrimRight(line, "\r\n"), []byte("data:"))
			data = bytes.TrimPrefix(data, []byte(" "))
			if ok && !bytes.Equal(data, []byte("[DONE]")) {
				s.events = append(s.events, bytes.Clone(data))
			}
		}
		s.rest = s.rest[i+2:]
	}
}

// ContentType is the answer's; known after the first Next.
func (s *Stream) ContentType() string { return s.kind }

// Header waits for the answer's headers: x-kvpilot-replica, x-request-id and others.
func (s *Stream) Header() (metadata.MD, error) { return s.rpc.Header() }

// Close abandons the rest of the answer; the replica stops working on it.
func (s *Stream) Close() { s.cancel() }
