package router

import (
	"cmp"
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/route/router/story"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// intake makes a request of a call: it reads the body, holds the tenant to its limits, finds the pool and gets the prompt's token ids.
type intake struct {
	set     *atomic.Pointer[settings]
	chooser *chooser.Chooser
	limits  *accounts
	reader  reader
	sides   sides
	places  places
	encoder encoder
	faults  *faults
	// prefix begins the ids of requests.
	prefix string
	tracer trace.Tracer
}

func (in *intake) newRequest(ctx context.Context, call *Call) *request {
	rq := &request{call: call, set: in.set.Load(), span: trace.SpanFromContext(ctx), id: newID(in.prefix), received: call.Received, policies: in.chooser.Settings()}
	if rq.received.IsZero() {
		rq.received = time.Now()
	}
	in.reader.checkID(rq)
	if rq.span.IsRecording() {
		rq.story = story.Begin(in.tracer, rq.span, rq.received)
	}
	return rq
}

// sendable reports why no replica can be sent the call, before anything is done for it.
func (in *intake) sendable(call *Call) error {
	path, method := cmp.Or(call.Path, "/"), cmp.Or(call.Method, http.MethodPost)
	if err := upstream.CheckLine(method, path, call.RawQuery); err != nil {
		in.faults.found(retry.Find(retry.Unsendable, retry.Origin{}))
		return unsendable(err)
	}
	return nil
}

// prepare learns what the choice needs: limit → read → pool → place → tokenize → book.
func (in *intake) prepare(ctx context.Context, rq *request) error {
	if err := in.limits.enter(rq); err != nil {
		return err
	}
	read := in.reader.read
	if rq.call.Route.TakesForm() {
		read = in.reader.readForm
	}
	if err := read(rq); err != nil {
		return err
	}
	in.sides.impose(rq)
	in.limits.capPriority(rq)
	if err := isolate(rq); err != nil {
		return err
	}
	if err := in.places.findPool(ctx, rq); err != nil {
		return err
	}
	if err := denyOld(rq); err != nil {
		return err
	}
	if err := in.places.place(ctx, rq); err != nil {
		return err
	}
	rq.translate(rq)
	rq.askStreamed(rq)
	if err := in.encoder.tokenize(ctx, rq); err != nil {
		return err
	}
	return in.limits.book(rq, rq.parsed.MaxTokens, false)
}
