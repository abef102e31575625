package router

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/splits"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// intake makes a request of a call: it reads the body, holds the tenant to its limits, finds the pool and gets the prompt's token ids.
type intake struct {
	set       *atomic.Pointer[settings]
	registry  *registry.Registry
	chooser   *chooser.Chooser
	tokens    *tokenizer.Pool
	bodies    *openai.Memory
	limits    *limits
	responses *responses
	steering  *steering
	faults    *faults
	splits    *splits.Splits
	standby   standbys
	// prefix begins the ids of requests.
	prefix string
	tracer trace.Tracer
}

func (in *intake) newRequest(ctx context.Context, call *Call) *request {
	rq := &request{call: call, set: in.set.Load(), span: trace.SpanFromContext(ctx), id: newID(in.prefix), received: call.Received, policies: in.chooser.Settings()}
	if rq.received.IsZero() {
		rq.received = time.Now()
	}
	in.checkID(rq)
	if rq.span.IsRecording() {
		rq.story = newStory(in.tracer, rq)
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
	read := in.read
	if rq.call.Route.TakesForm() {
		read = in.readForm
	}
	if err := read(rq); err != nil {
		return err
	}
	in.impose(rq)
	in.limits.capPriority(rq)
	if err := rq.set.isolation.apply(rq); err != nil {
		return err
	}
	if err := in.findPool(ctx, rq); err != nil {
		return err
	}
	if err := rq.set.isolation.denyOld(rq); err != nil {
		return err
	}
	if err := in.place(ctx, rq); err != nil {
		return err
	}
	rq.translate(rq)
	if err := in.tokenize(ctx, rq); err != nil {
		return err
	}
	return in.limits.book(rq, rq.parsed.MaxTokens, false)
}

// read takes from the body what routing needs.
func (in *intake) read(rq *request) error {
	began := time.Now()
	params := openai.Params{
		Route: rq.call.Route, Header: rq.call.Header, SessionHeaders: rq.set.sessions,
		Body: rq.call.Body, Truncated: rq.question.truncated(), Limits: openai.Limits{Members: rq.set.MaxMembers, Items: rq.set.MaxMessages},
	}
	req, err := in.bodies.Read(params)
	if err == nil {
		req, err = in.takeReceived(rq, req, params)
	}
	if err == nil && !rq.call.Steers {
		params.Body = req.Body
		req, err = in.unsteered(rq, req, params)
	}
	if err != nil {
		refused := badRequest(err)
		rq.story.read(began, refused)
		return refused
	}
	rq.parsed, rq.body = req, req.Body
	rq.story.read(began, nil)
	return nil
}

// findPool finds the replicas that serve the model. A body without a model means the one that each
// engine would take.
func (in *intake) findPool(ctx context.Context, rq *request) error {
	name := rq.parsed.Model
	if err := in.standby.wait(ctx, rq, name); err != nil {
		return err
	}
	snapshot := in.registry.Snapshot()
	if name == "" {
		pool, ok := snapshot.Unnamed()
		if !ok {
			return apierror.New(apierror.InvalidBody, "the field \"model\" is missing, and the router does not serve exactly one model."+snapshot.KnownModels(), nil, apierror.WithParam("model"))
		}
		rq.usePool(pool)
		return nil
	}
	pool, ok := snapshot.Pool(name)
	if !ok {
		return unknownModel(name, snapshot)
	}
	rq.usePool(pool)
	return nil
}

// unknownModel is a 404, unless a replica that could serve the model has not reported yet.
func unknownModel(name string, s *registry.Snapshot) error {
	if s.Silent() > 0 && len(s.Models()) == 0 || len(s.Replicas) == 0 {
		return apierror.New(apierror.NoReplica, "no replica has reported its models yet", nil, apierror.WithRetryAfter(time.Second))
	}
	return apierror.New(apierror.ModelNotFound, s.UnknownModel(name), nil, apierror.WithParam("model"))
}

// badRequest is the public form of an error of openai.Read.
func badRequest(err error) *apierror.Error {
	var bad *openai.BadRequest
	if !errors.As(err, &bad) {
		return apierror.From(err)
	}
	reason := apierror.InvalidBody
	switch bad.Code {
	case openai.CodeTooLarge:
		reason = apierror.BodyTooLarge
	case openai.CodeMediaType:
		reason = apierror.UnsupportedMediaType
	}
	return apierror.New(reason, bad.Message, nil, apierror.WithParam(bad.Param))
}

// findAdapter finds the pool of a question: the adapter's where one is named, which must be one of the
// model's, if that is named too.
func (in *intake) findAdapter(ctx context.Context, rq *request, adapter string) error {
	if adapter == "" {
		return in.findPool(ctx, rq)
	}
	snapshot := in.registry.Snapshot()
	pool, ok := snapshot.Pool(adapter)
	if ok && rq.parsed.Model != "" && rq.parsed.Model != adapter {
		if err := in.findPool(ctx, rq); err != nil {
			return err
		}
		ok = pool == rq.pool || pool.AdapterOf(rq.pool)
	}
	if !ok || pool.Adapter == "" {
		return apierror.New(apierror.ModelNotFound, "The model has no adapter `"+clip(adapter, 128)+"`.", nil, apierror.WithParam("adapter"))
	}
	rq.usePool(pool)
	return nil
}

// place finds out whether one replica alone can serve: the one that the caller names, or the one that
// stores the response which the request continues.
func (in *intake) place(ctx context.Context, rq *request) error {
	if err := in.responses.check(ctx, rq); err != nil {
		return err
	}
	if rq.call.Options.Pinned != "" {
		return in.checkPin(rq)
	}
	in.responses.findHolder(ctx, rq)
	return nil
}

// checkPin refuses a pin that no retry will make true.
func (in *intake) checkPin(rq *request) error {
	o := &rq.call.Options
	name := "`" + clip(string(o.Pinned), 128) + "`"
	missing := func(message string) error {
		return apierror.New(apierror.ReplicaNotFound, message, nil, apierror.WithParam("pin"))
	}
	at, known := in.registry.Snapshot().Replica(o.Pinned)
	switch {
	case !known:
		return missing("There is no replica " + name + "; ReplicaService.List, GET /kvpilot/v1/replicas, lists the ids.")
	case len(at.Models) == 0:
		return nil // it has not reported yet what it serves
	case !serves(rq.pool, at.ID):
		return missing("The replica " + name + " does not serve the model `" + clip(rq.pool.Model, 128) + "`.")
	case o.PinnedRank >= len(at.Slots):
		return missing("The replica " + name + " has no such rank.")
	}
	return nil
}

func serves(p *registry.Pool, id replica.ID) bool {
	return slices.ContainsFunc(p.Replicas, func(r *replica.Replica) bool { return r.ID == id })
}
