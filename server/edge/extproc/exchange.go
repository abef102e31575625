package extproc

import (
	"context"
	"errors"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/route/router"
)

// ahead is how many messages are read ahead of their use, so that the stream's end is noticed while a request waits: of a body that has come whole,
// some versions of Envoy send the last message twice.
const ahead = 4

// wire is the stream of a gateway.
type wire struct {
	stream extproc.ExternalProcessor_ProcessServer
	in     chan *question
}

// exchange is one HTTP request of a gateway.
type exchange struct {
	server *Server
	wire
	modes modes
	sight router.Sight

	account ledger.Account
	request *request
	handoff *router.Handoff // nil until a replica is chosen
	// body and trailers are what came of the client's request, answered is set when its headers were answered.
	body     body
	answered bool
	// begun and whole are set when the answer's head and its end have come.
	begun, whole bool
}

// errLeft ends the wait for a message of a gateway that has ended its stream.
var errLeft = errors.New("the gateway ended the stream")

// errAnswered ends the wait for a body when the gateway has answered its client by itself.
var errAnswered = errors.New("the gateway answered before the request's end")

func newExchange(s *Server, stream extproc.ExternalProcessor_ProcessServer) *exchange {
	return &exchange{server: s, wire: wire{stream, make(chan *question, ahead)}}
}

// read passes messages on until the stream ends, and then ends what waits for the gateway.
func (w *wire) read(ctx context.Context, end context.CancelFunc) {
	defer end()
	defer close(w.in)
	for {
		m, err := w.stream.Recv()
		if err != nil {
			return
		}
		select {
		case w.in <- m:
		case <-ctx.Done():
			return
		}
	}
}

// next waits for a message; late and slow may be nil.
func (w *wire) next(late <-chan time.Time, slow <-chan struct{}) (*question, error) {
	select {
	case m, ok := <-w.in:
		if !ok {
			return nil, errLeft
		}
		return m, nil
	case <-late:
		return nil, apierror.New(apierror.BodyTimeout, "the request body did not arrive in time (gateway.body_timeout)", nil)
	case <-slow:
		return nil, apierror.New(apierror.BodyTimeout, "the request body arrived too slowly, and its memory was needed", nil)
	}
}

// run serves the stream.
func (x *exchange) run() error {
	ctx, end := context.WithCancel(x.stream.Context())
	defer end()
	go x.read(ctx, end)
	m, err := x.next(nil, nil)
	if err != nil {
		x.server.metrics.Questions.Add(resultLeft)
		return nil
	}
	head := m.GetRequestHeaders()
	if head == nil {
		x.server.metrics.Questions.Add(resultFailed)
		return status.Error(codes.InvalidArgument, "the first message must be request_headers: the gateway must send the headers of requests (request_header_mode: SEND)")
	}
	x.modes = modesOf(m.GetProtocolConfig())
	x.sight = x.server.sightOf(x.modes)
	x.request = newRequest(fieldsOf(head.GetHeaders()), x.server.priority)
	call := &x.request.call
	ctx = x.server.params.Propagator.Extract(ctx, headerCarrier(call.Header))
	ctx, s := span.StartAt(ctx, x.server.tracer, x.request.spanName(), trace.SpanKindServer, trace.SpanID{}, call.Received)
	defer x.leave(ctx, s)
	if err := x.ask(ctx, m, head.GetEndOfStream()); err != nil {
		return x.refuse(ctx, err)
	}
	return x.follow(ctx)
}

// sightOf is how much of an answer is seen.
func (s *Server) sightOf(m modes) router.Sight {
	switch {
	case s.config.Response == ResponseSkip:
		return router.SeesNothing
	case s.config.Response == ResponseHeaders, m.response == 0:
		return router.SeesHead
	}
	return router.SeesAll
}

// refuse answers the client with an error. Where the gateway has ended the stream, the client is gone.
func (x *exchange) refuse(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, errLeft), ctx.Err() != nil:
		x.server.metrics.Questions.Add(resultLeft)
		return nil
	case errors.Is(err, errAnswered):
		x.server.metrics.Questions.Add(resultLeft)
		return x.follow(ctx)
	}
	if st, ok := status.FromError(err); ok && st.Code() == codes.InvalidArgument {
		if _, public := errors.AsType[*apierror.Error](err); !public {
			x.server.metrics.Questions.Add(resultFailed)
			return err
		}
	}
	e := apierror.From(err)
	x.server.metrics.Questions.Add(resultRefused)
	if reason := droppedFor(e); reason != "" {
		x.server.metrics.Dropped.Add(reason)
	}
	x.request.failed = e
	return x.send(refusal(e, x.request.call.Path, x.request.call.RequestID))
}

// send sends a message.
func (w *wire) send(m *reply) error { return w.stream.Send(m) }

// leave releases what the request holds.
func (x *exchange) leave(ctx context.Context, s trace.Span) {
	ctx = context.WithoutCancel(ctx)
	x.body.done()
	x.account.Close()
	x.request.describe(s)
	h := x.handoff
	switch {
	case h == nil:
	case x.answered && x.parts():
		x.server.partings.add(h.Lasts(), &parting{h, s})
		return
	case x.whole, h.Complete(), x.sight == router.SeesHead && x.begun: // the head of an answer in one piece comes with its end
		h.End(ctx, nil)
	default:
		h.End(ctx, apierror.New(apierror.Cancelled, "the gateway ended the request before its answer was complete", context.Canceled))
	}
	s.End()
}

// parts reports whether the answer continues unseen.
func (x *exchange) parts() bool {
	return !x.whole && (x.sight == router.SeesNothing || x.sight == router.SeesHead && x.begun && x.handoff.Streams())
}

// follow passes the answer on until the stream ends.
func (x *exchange) follow(ctx context.Context) error {
	for {
		if x.answered && x.sight == router.SeesNothing && x.body.whole {
			return nil // the gateway continues without the picker
		}
		m, err := x.next(nil, nil)
		if err != nil {
			return nil
		}
		if err := x.handle(ctx, m); err != nil {
			return err
		}
		if x.whole && x.body.whole {
			return nil
		}
	}
}

// handle answers one message behind those of the request.
func (x *exchange) handle(ctx context.Context, m *question) error {
	switch part := m.GetRequest().(type) {
	case *extproc.ProcessingRequest_RequestBody:
		return x.late(part.RequestBody)
	case *extproc.ProcessingRequest_RequestTrailers:
		x.body.whole = true
		return x.send(requestTrailers())
	case *extproc.ProcessingRequest_ResponseHeaders:
		return x.beginAnswer(ctx, m, part.ResponseHeaders)
	case *extproc.ProcessingRequest_ResponseBody:
		return x.writeAnswer(part.ResponseBody)
	case *extproc.ProcessingRequest_ResponseTrailers:
		x.endAnswer()
		return x.send(responseTrailers())
	}
	return nil // of a newer protocol
}

// late answers a piece of a request body that needs no reading, or that was read: some versions of Envoy send the last one twice.
func (x *exchange) late(b *extproc.HttpBody) error {
	twice := x.body.whole
	x.body.whole = x.body.whole || b.GetEndOfStream()
	if !isDuplex(x.modes.request) {
		return x.send(requestBody(nil))
	}
	if twice {
		return nil
	}
	return pieces(b.GetBody(), int(x.server.config.ChunkBytes), b.GetEndOfStream(), func(piece []byte, end bool) error {
		return x.send(requestBody(streamed(piece, end)))
	})
}

// metadata is the stream's: what the gateway says of itself.
func (w *wire) metadata() metadata.MD {
	md, _ := metadata.FromIncomingContext(w.stream.Context())
	return md
}
